// SPDX-License-Identifier: Apache-2.0
#include "server/listening.h"

#include <fcntl.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "input/errors.h"
#include "input/log.h"
#include "server/service_manager.h"

namespace rvv_runner {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// With the exit code that a shell reports for this signal.
[[noreturn]] void Exit(int signal) { std::_Exit(128 + signal); }

// True if a terminal can hang up on this program: it has one, and nohup did not start it.
bool HasTerminal() {
  struct sigaction action;
  sigaction(SIGHUP, nullptr, &action);
  const int terminal = open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC);
  if (terminal >= 0) close(terminal);
  return terminal >= 0 && action.sa_handler != SIG_IGN;
}

}  // namespace

StopSignals::StopSignals() : terminal_(HasTerminal()) {
  sigemptyset(&set_);
  // SIGUSR1 wakes the waiting thread.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) sigaddset(&set_, signal);
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
  while (signal == SIGUSR1 || (signal == SIGHUP && !terminal_)) {
    sigwait(&set_, &signal);
    if (over_) return;
    if (signal == SIGHUP && !terminal_) Reload();
  }
  const auto end = Clock::now() + kMost;
  {
    const std::lock_guard guard(mutex_);
    // No request is running that needs an end.
    if (!stop_) Exit(signal);
    stop_();
  }
  // The model may be in the middle of a long call.
  int again = -1;
  do {
    const auto left = std::max<std::chrono::nanoseconds>(end - Clock::now(), {});
    const timespec patience = {left / 1s, (left % 1s).count()};
    again = sigtimedwait(&set_, nullptr, &patience);
  } while ((again < 0 && errno == EINTR) || (again == SIGHUP && !terminal_));
  if (!over_) Exit(signal);
}

void StopSignals::Reload() {
  const std::lock_guard guard(mutex_);
  reload_waits_ = !reload_;
  if (!reload_) return;
  try {
    reload_();
  } catch (const std::exception& error) {
    Log(LogLevel::kError, std::string("SIGHUP changed nothing: ") + error.what());
  }
}

void StopSignals::OnReload(std::function<void()> reload) {
  {
    const std::lock_guard guard(mutex_);
    reload_ = std::move(reload);
    if (!reload_waits_) return;
  }
  Reload();
}

void StopSignals::Await(std::function<void()> stop) {
  const std::lock_guard guard(mutex_);
  stop_ = std::move(stop);
}

namespace {

void ListenUntilStopped(HttpServer* server, const std::string& name, StopSignals* signals,
                        std::ostream& out) {
  std::atomic<bool> stopped = false;
  signals->Await([&] {
    stopped = true;
    server->Close();
  });
  out << name << " listens at " << server->address() << std::endl;
  NotifyServiceManager("READY=1");
  const bool good = server->Listen();
  NotifyServiceManager("STOPPING=1");
  signals->Await(nullptr);
  if (!good && !stopped) throw RunError("the server cannot accept more connections");
}

}  // namespace

void ServeUntilStopped(HttpServer* server, const Served& served, StopSignals* signals,
                       std::ostream& out) {
  Endpoints endpoints(served);
  server->Offer(&endpoints);
  ListenUntilStopped(server, served.name, signals, out);
}

void ServeUntilStopped(HttpServer* server, ModelServers* models, StopSignals* signals,
                       std::ostream& out) {
  Router router(models);
  server->Offer(&router);
  ListenUntilStopped(server, "models", signals, out);
}

}  // namespace rvv_runner
