// SPDX-License-Identifier: Apache-2.0
#include "server/listening.h"

#include <pthread.h>
#include <time.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "input/errors.h"

namespace rvv_runner {
namespace {

// With the exit code that a shell reports for this signal.
[[noreturn]] void Exit(int signal) { std::_Exit(128 + signal); }

}  // namespace

StopSignals::StopSignals() {
  sigemptyset(&set_);
  // SIGUSR1 wakes the waiting thread.
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaddset(&set_, signal);
  pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  waiter_ = std::thread([this] { Wait(); });
}

StopSignals::~StopSignals() {
  over_ = true;
  pthread_kill(waiter_.native_handle(), SIGUSR1);
  waiter_.join();
}

void StopSignals::Wait() {
  int signal = SIGUSR1;
  while (signal == SIGUSR1) {
    sigwait(&set_, &signal);
    if (over_) return;
  }
  {
    const std::lock_guard guard(mutex_);
    // No request is running that needs an end.
    if (!stop_) Exit(signal);
    stop_();
  }
  // The model may be in the middle of a long call.
  const timespec patience = {kMostSeconds, 0};
  int again = -1;
  do {
    again = sigtimedwait(&set_, nullptr, &patience);
  } while (again < 0 && errno == EINTR);
  if (!over_) Exit(signal);
}

void StopSignals::Await(std::function<void()> stop) {
  const std::lock_guard guard(mutex_);
  stop_ = std::move(stop);
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
  signals->Await(nullptr);
  if (!good && !stopped) throw RunError("the server cannot accept more connections");
}

}  // namespace rvv_runner
