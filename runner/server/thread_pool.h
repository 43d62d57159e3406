// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <httplib.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

namespace rvv_runner {

// Threads that serve connections. A connection waits only if as many as `most` are served: httplib's
// own pool starts a thread only if none is idle when a connection comes, so that in a burst many
// wait behind few threads that have not woken yet.
class ThreadPool final : public httplib::TaskQueue {
 public:
  // `waiting`: the number of connections without a thread; as many as `most` may wait.
  ThreadPool(size_t most, std::atomic<int>* waiting) : most_(most), waiting_(waiting) {}

  bool enqueue(std::function<void()> serve) override;
  void shutdown() override;

 private:
  void StartThread();
  void Work();

  const size_t most_;
  std::atomic<int>* waiting_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable ended_;
  std::deque<std::function<void()>> jobs_;
  size_t threads_ = 0;
  size_t idle_ = 0;
  bool stopping_ = false;
};

}  // namespace rvv_runner
