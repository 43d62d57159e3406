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

// SIGINT and SIGTERM, blocked for this thread and all that it starts from then on: make it before
// anything that starts threads. Until Await is called they end the program, as they do by default.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // From now on calls `stop`, on a thread of its own, at the first of them.
  void Await(std::function<void()> stop);
  // No longer waits for any.
  void Forget();

 private:
  void Wait();

  sigset_t set_;
  std::mutex mutex_;
  std::function<void()> stop_;
  std::atomic<bool> over_{false};
  std::thread waiter_;
};

// Serves until a signal to stop, on a server that is bound. Tells its address in one line on `out`
// when it listens. Throws RunError when it no longer can.
void ServeUntilStopped(HttpServer* server, const Served& served, StopSignals* signals,
                       std::ostream& out);

}  // namespace rvv_runner
