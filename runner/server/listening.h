// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <mutex>
#include <ostream>
#include <thread>

#include "server/endpoints.h"
#include "server/http_server.h"

namespace rvv_runner {

// Blocks SIGINT, SIGTERM and SIGHUP for this thread and the threads that it starts later: create it
// before any thread. Until Await is called, the first two end the program, as they do by default.
// SIGHUP reads settings again (OnReload); where the program has a terminal, SIGHUP means that the
// terminal is gone, and ends the program like SIGTERM.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // From now on, the first signal calls `stop` on a separate thread; with null, it ends the program
  // again. After a signal the object must be destroyed within kMost: later, or at a second
  // signal, it ends the program, whatever the other threads do.
  void Await(std::function<void()> stop);

  // From now on, SIGHUP calls `reload` on a separate thread, which logs what it throws. A signal
  // that came before calls it at once.
  void OnReload(std::function<void()> reload);

 private:
  static constexpr std::chrono::seconds kMost{4};

  void Wait();
  void Reload();

  sigset_t set_;
  bool terminal_;
  bool reload_waits_ = false;
  std::mutex mutex_;
  std::function<void()> reload_;
  std::function<void()> stop_;
  std::atomic<bool> over_{false};
  std::thread waiter_;
};

// Serves on a bound server until a signal to stop. Prints its address in one line to `out` when it
// starts to listen. Throws RunError when the server fails.
void ServeUntilStopped(HttpServer* server, const Served& served, StopSignals* signals,
                       std::ostream& out);
// The same for several models.
void ServeUntilStopped(HttpServer* server, ModelServers* models, StopSignals* signals,
                       std::ostream& out);

}  // namespace rvv_runner
