// SPDX-License-Identifier: Apache-2.0
#include "server/listening.h"

#include <pthread.h>

#include <utility>

#include "input/errors.h"

namespace rvv_runner {

StopSignals::StopSignals() {
  sigemptyset(&set_);
  // The last one ends the wait without stopping anything.
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaddset(&set_, signal);
  pthread_sigmask(SIG_BLOCK, &set_, nullptr);
}

StopSignals::~StopSignals() { Forget(); }

void StopSignals::Await(std::function<void()> stop) {
  waiter_ = std::thread([set = set_, stop = std::move(stop)] {
    int signal = 0;
    sigwait(&set, &signal);
    if (signal != SIGUSR1) stop();
  });
}

void StopSignals::Forget() {
  if (!waiter_.joinable()) return;
  pthread_kill(waiter_.native_handle(), SIGUSR1);
  waiter_.join();
}

void ServeUntilStopped(const ServerOptions& options, const Served& served, StopSignals* signals,
                       std::ostream& out) {
  Endpoints endpoints(served);
  HttpServer server(options, &endpoints);
  server.Bind();
  signals->Await([&] { server.Close(); });
  out << served.name << " listens at " << server.address() << std::endl;
  const bool good = server.Listen();
  signals->Forget();
  if (!good) throw RunError("the server can take no more connections");
}

}  // namespace rvv_runner
