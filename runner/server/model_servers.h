// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace rvv_runner {

// A model on the disk: an artefact's folder.
struct StoredModel {
  std::string name;
  std::string folder;
  int64_t bytes = 0;        // of its parameters
  std::string digest = {};  // of their index, hexadecimal; may be empty
};

// Servers of stored models. Each is a process of its own, as an artefact's program holds its model.
// It is started when the model is first asked for. When there is no memory for another one, the one
// that was not used for the longest time is stopped, unless it is answering. Any thread may call it.
class ModelServers {
 public:
  // `options`: further options of a model's server. `memory`: bytes of the running models' parameters
  // and caches together; `cache`: those of a model's cache.
  ModelServers(std::vector<StoredModel> models,
               std::function<std::vector<std::string>(const StoredModel&)> options, int64_t memory,
               int64_t cache);
  // Stops all.
  ~ModelServers();
  ModelServers(const ModelServers&) = delete;
  ModelServers& operator=(const ModelServers&) = delete;

  const std::vector<StoredModel>& models() const { return models_; }
  // How long a model stays loaded after its last use; without a value, until its memory is needed.
  using Kept = std::optional<std::chrono::seconds>;
  struct Running {
    bool runs = false;
    Kept left = {};  // until it is unloaded, unless it is used again
  };
  Running StateOf(size_t index) const;

  // A running server, which is not stopped for as long as this lives.
  class Use {
   public:
    Use(ModelServers* servers, size_t index, int port)
        : servers_(servers), index_(index), port_(port) {}
    ~Use() { servers_->Release(index_, kept_); }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    int port() const { return port_; }
    // Sets how long the model stays loaded after this use.
    void Keep(Kept kept) { kept_ = kept; }

   private:
    ModelServers* servers_;
    size_t index_;
    int port_;
    Kept kept_ = {};
  };
  // Starts the model's server if it does not run; its port is of this machine. Throws ApiError: 503
  // if others that are answering leave no memory for a while, or if it does not start.
  std::unique_ptr<Use> Acquire(size_t index);

  // Lets all servers read their keys again, and those that are loading when they are ready.
  void Reload();
  // From now on, Acquire throws.
  void Close();

 private:
  enum class State { kStopped, kStarting, kRunning };
  using Clock = std::chrono::steady_clock;
  struct Server {
    State state = State::kStopped;
    pid_t process = 0;
    int port = 0;
    int users = 0;
    uint64_t used = 0;  // time of its last use, as a number of Acquire calls
    std::optional<Clock::time_point> unload = {};
  };

  void Release(size_t index, Kept kept);
  std::optional<Clock::time_point> StopUnused();
  int64_t CostOf(size_t index) const { return models_[index].bytes + cache_; }
  bool MakeRoom(size_t index);
  void Stop(Server* server);
  void Start(size_t index, Server* server);
  void RunJobs();
  void OnKeeper(std::function<void()> job);

  const std::vector<StoredModel> models_;
  const std::function<std::vector<std::string>(const StoredModel&)> options_;
  const int64_t memory_;
  const int64_t cache_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Server> servers_;
  uint64_t acquired_ = 0;
  uint64_t reloads_ = 0;
  bool closed_ = false;

  // Starts processes, which end with the thread that started them, and stops those whose time is over.
  std::list<std::function<void()>> jobs_;
  std::thread keeper_;
};

// The artefacts in a folder, sorted by name. Throws InputError if there is none.
std::vector<StoredModel> ModelsIn(const std::string& folder);

}  // namespace rvv_runner
