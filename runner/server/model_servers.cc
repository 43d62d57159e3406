// SPDX-License-Identifier: Apache-2.0
#include "server/model_servers.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <utility>

#include "api/api_error.h"
#include "input/errors.h"
#include "input/log.h"
#include "model/param_index.h"

namespace rvv_runner {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr auto kPatience = 60s;  // for others to end their answers

// Starts a program whose standard output is a pipe, and returns its read end.
int Spawn(const std::vector<std::string>& words, pid_t* process) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw RunError("cannot make a pipe");
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  *process = fork();
  if (*process == 0) {
    // Only calls that are safe after a fork of a program with threads.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    dup2(ends[1], STDOUT_FILENO);
    syscall(SYS_close_range, 3U, ~0U, 0U);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  close(ends[1]);
  if (*process < 0) {
    close(ends[0]);
    throw RunError("cannot start a process");
  }
  return ends[0];
}

// The port in the line "NAME listens at http://127.0.0.1:PORT" from a pipe, which is closed; 0 if
// there is no such line.
int ReadPort(int pipe) {
  std::string line;
  char byte;
  while (line.size() < 4096 && read(pipe, &byte, 1) == 1 && byte != '\n') line += byte;
  close(pipe);
  const size_t colon = line.rfind(':');
  if (line.find(" listens at http://") == std::string::npos || colon == std::string::npos) return 0;
  return std::atoi(line.c_str() + colon + 1);
}

}  // namespace

ModelServers::ModelServers(std::vector<StoredModel> models,
                           std::function<std::vector<std::string>(const StoredModel&)> options,
                           int64_t memory, int64_t cache)
    : models_(std::move(models)),
      options_(std::move(options)),
      memory_(memory),
      cache_(cache),
      servers_(models_.size()),
      keeper_([this] { RunJobs(); }) {}

ModelServers::~ModelServers() {
  Close();
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return std::ranges::none_of(servers_,
                                  [](const Server& one) { return one.state == State::kStarting; });
    });
    for (Server& server : servers_) Stop(&server);
  }
  keeper_.join();
}

ModelServers::Running ModelServers::StateOf(size_t index) const {
  const std::lock_guard lock(mutex_);
  const Server& server = servers_[index];
  Running state{server.state == State::kRunning};
  if (server.unload) {
    const auto left = std::chrono::ceil<std::chrono::seconds>(*server.unload - Clock::now());
    state.left = std::max(left, 0s);
  }
  return state;
}

std::unique_ptr<ModelServers::Use> ModelServers::Acquire(size_t index) {
  std::unique_lock lock(mutex_);
  Server& server = servers_[index];
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (server.state != State::kRunning || kill(server.process, 0) != 0 ||
         waitpid(server.process, nullptr, WNOHANG) == server.process) {
    if (closed_) throw ApiError(kServerStopping, "the server is stopping");
    if (server.state == State::kRunning) {
      Log(LogLevel::kError, models_[index].name + " has ended; it is started again");
      server.state = State::kStopped;
    }
    if (server.state == State::kStopped && MakeRoom(index)) {
      server.state = State::kStarting;
      lock.unlock();
      Start(index, &server);
      lock.lock();
      changed_.notify_all();
      if (server.state == State::kRunning) continue;
      throw ApiError(503, "the model " + models_[index].name +
                              " does not start; the server's log " + "has the reason");
    }
    if (changed_.wait_until(lock, end) == std::cv_status::timeout) {
      const bool loads = server.state == State::kStarting;
      throw ApiError(503, loads ? models_[index].name + " is still loading; try again later"
                                : "there is no memory for " + models_[index].name +
                                      " beside the models that are answering; try again later");
    }
  }
  ++server.users;
  server.used = ++acquired_;
  return std::make_unique<Use>(this, index, server.port);
}

void ModelServers::Release(size_t index, Kept kept) {
  const std::lock_guard lock(mutex_);
  Server& server = servers_[index];
  --server.users;
  server.unload.reset();
  if (kept) server.unload = Clock::now() + *kept;
  changed_.notify_all();
}

// Stops servers that are not used, until the model fits. Returns false if it does not.
bool ModelServers::MakeRoom(size_t index) {
  while (true) {
    int64_t taken = CostOf(index);
    Server* oldest = nullptr;
    for (size_t i = 0; i < servers_.size(); ++i) {
      Server& other = servers_[i];
      if (i == index || other.state == State::kStopped) continue;
      taken += CostOf(i);
      if (other.state != State::kRunning || other.users > 0) continue;
      if (oldest == nullptr || other.used < oldest->used) oldest = &other;
    }
    // A model that is too large alone is tried: its own server says what it lacks.
    if (taken <= memory_ || taken == CostOf(index)) return true;
    if (oldest == nullptr) return false;
    Stop(oldest);
  }
}

// Stops servers whose time is over. Returns when the next one's is.
std::optional<ModelServers::Clock::time_point> ModelServers::StopUnused() {
  std::optional<Clock::time_point> next;
  for (size_t i = 0; i < servers_.size(); ++i) {
    Server& server = servers_[i];
    if (!server.unload || server.users > 0 || server.state != State::kRunning) continue;
    if (*server.unload <= Clock::now()) {
      Log(LogLevel::kInfo, "unloading " + models_[i].name);
      Stop(&server);
    } else if (!next || *server.unload < *next) {
      next = server.unload;
    }
  }
  return next;
}

// Waits until the process is gone, so that its memory is free.
void ModelServers::Stop(Server* server) {
  if (server->state != State::kRunning) return;
  kill(server->process, SIGTERM);
  for (int i = 0; i < 100 && waitpid(server->process, nullptr, WNOHANG) == 0; ++i) {
    std::this_thread::sleep_for(50ms);
    if (i == 98) kill(server->process, SIGKILL);
  }
  server->state = State::kStopped;
  server->unload.reset();
}

void ModelServers::Start(size_t index, Server* server) {
  const StoredModel& model = models_[index];
  Log(LogLevel::kInfo, "loading " + model.name);
  std::vector<std::string> words = {"/bin/sh",   model.folder + "/run.sh",
                                    "serve",     "--name",
                                    model.name,  "--host",
                                    "127.0.0.1", "--port",
                                    "0"};
  const std::vector<std::string> more = options_(model);
  words.insert(words.end(), more.begin(), more.end());
  server->process = 0;
  const uint64_t reloads = [&] {
    const std::lock_guard lock(mutex_);
    return reloads_;
  }();
  std::promise<int> port;
  OnKeeper([&] {
    try {
      port.set_value(ReadPort(Spawn(words, &server->process)));
    } catch (const RunError& error) {
      Log(LogLevel::kError, error.what());
      port.set_value(0);
    }
  });
  server->port = port.get_future().get();
  const std::lock_guard lock(mutex_);
  server->state = server->port > 0 ? State::kRunning : State::kStopped;
  // Before its port is known, the signal would end it.
  if (server->port > 0 && reloads_ != reloads) kill(server->process, SIGHUP);
  if (server->port == 0 && server->process > 0) {
    kill(server->process, SIGKILL);
    waitpid(server->process, nullptr, 0);
  }
}

void ModelServers::OnKeeper(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  changed_.notify_all();
}

void ModelServers::RunJobs() {
  std::unique_lock lock(mutex_);
  while (true) {
    const auto next = StopUnused();
    if (jobs_.empty() && !closed_) {
      next ? static_cast<void>(changed_.wait_until(lock, *next)) : changed_.wait(lock);
      continue;
    }
    if (jobs_.empty()) break;
    const auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
  }
}

void ModelServers::Reload() {
  const std::lock_guard lock(mutex_);
  ++reloads_;
  for (const Server& server : servers_) {
    if (server.state == State::kRunning) kill(server.process, SIGHUP);
  }
}

void ModelServers::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

std::vector<StoredModel> ModelsIn(const std::string& folder) {
  std::vector<StoredModel> models;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const fs::path params = entry.path() / "params";
    if (!fs::exists(entry.path() / "run.sh", error) || !fs::exists(params / kIndexFile, error)) {
      continue;
    }
    const ParamFiles files = FilesOf(params);
    models.push_back({entry.path().filename(), entry.path(), files.bytes, files.digest});
  }
  if (models.empty()) {
    throw InputError("--models: there is no folder with run.sh and params in " + folder +
                     "; unpack tarballs of models there");
  }
  std::ranges::sort(models, {}, &StoredModel::name);
  return models;
}

}  // namespace rvv_runner
