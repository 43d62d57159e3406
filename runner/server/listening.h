// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <csignal>
#include <functional>
#include <mutex>
#include <ostream>
#include <thread>

#include "server/endpoints.h"
#include "server/http_server.h"

namespace rvv_runner {

// Blocks SIGINT and SIGTERM for this thread and the threads that it starts later: create it before
// any thread. Until Await is called, the signals end the program, as they do by default.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // From now on, the first signal calls `stop` on a separate thread; with null, it ends the program
  // again. After a signal the object must be destroyed within kMostSeconds: later, or at a second
  // signal, it ends the program, whatever the other threads do.
  void Await(std::function<void()> stop);

 private:
  static constexpr int kMostSeconds = 4;

  void Wait();

  sigset_t set_;
  std::mutex mutex_;
  std::function<void()> stop_;
  std::atomic<bool> over_{false};
  std::thread waiter_;
};

// Serves on a bound server until a signal to stop. Prints its address in one line to `out` when it
// starts to listen. Throws RunError when the server fails.
void ServeUntilStopped(HttpServer* server, const Served& served, StopSignals* signals,
                       std::ostream& out);

}  // namespace rvv_runner
