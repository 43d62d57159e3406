// SPDX-License-Identifier: Apache-2.0
#include "server/thread_pool.h"

#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

namespace rvv_runner {
namespace {

constexpr size_t kKept = 8;                   // threads that stay without connections
constexpr std::chrono::seconds kIdleTime{3};  // after which the others end

}  // namespace

bool ThreadPool::enqueue(std::function<void()> serve) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || jobs_.size() >= most_) return false;
    jobs_.push_back(std::move(serve));
    ++*waiting_;
    if (jobs_.size() > idle_ && threads_ < most_) StartThread();
    if (threads_ == 0) {
      jobs_.pop_back();
      --*waiting_;
      return false;
    }
  }
  wake_.notify_one();
  return true;
}

void ThreadPool::StartThread() {
  try {
    std::thread([this] { Work(); }).detach();
    ++threads_;
  } catch (const std::system_error&) {
    // The system has no more threads; those that there are serve the connection.
  }
}

void ThreadPool::shutdown() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  wake_.notify_all();
  ended_.wait(lock, [this] { return threads_ == 0; });
}

void ThreadPool::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    ++idle_;
    const bool woken =
        wake_.wait_for(lock, kIdleTime, [this] { return stopping_ || !jobs_.empty(); });
    --idle_;
    if (!woken && threads_ <= kKept) continue;
    if (jobs_.empty()) break;
    const std::function<void()> serve = std::move(jobs_.front());
    jobs_.pop_front();
    --*waiting_;
    lock.unlock();
    serve();
    lock.lock();
  }
  --threads_;
  std::notify_all_at_thread_exit(ended_, std::move(lock));
}

}  // namespace rvv_runner
