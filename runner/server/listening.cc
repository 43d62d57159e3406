// SPDX-License-Identifier: Apache-2.0
#include "server/listening.h"

#include <pthread.h>

#include <cstdlib>
#include <utility>

#include "input/errors.h"

namespace rvv_runner {

StopSignals::StopSignals() {
  sigemptyset(&set_);
  // SIGUSR1 wakes the waiting thread.
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaddset(&set_, signal);
  pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  waiter_ = std::thread([this] { Wait(); });
}

StopSignals::~StopSignals() { Forget(); }

void StopSignals::Wait() {
  int signal = SIGUSR1;
  while (signal == SIGUSR1) {
    sigwait(&set_, &signal);
    if (over_) return;
  }
  const std::lock_guard guard(mutex_);
  // The exit code that a shell reports for this signal. No request is running that needs an end.
  if (!stop_) std::_Exit(128 + signal);
  stop_();
}

void StopSignals::Await(std::function<void()> stop) {
  const std::lock_guard guard(mutex_);
  stop_ = std::move(stop);
}

void StopSignals::Forget() {
  if (!waiter_.joinable()) return;
  over_ = true;
  pthread_kill(waiter_.native_handle(), SIGUSR1);
  waiter_.join();
}

void ServeUntilStopped(HttpServer* server, const Served& served, StopSignals* signals,
                       std::ostream& out) {
  Endpoints endpoints(served);
  server->Offer(&endpoints);
  std::atomic<bool> stopped = false;
  signals->Await([&] {
    stopped = true;
    server->Close();
  });
  out << served.name << " listens at " << server->address() << std::endl;
  const bool good = server->Listen();
  signals->Forget();
  if (!good && !stopped) throw RunError("the server cannot accept more connections");
}

}  // namespace rvv_runner
