// SPDX-License-Identifier: Apache-2.0
#include "model/thread_pool.h"

#include <tvm/ffi/function.h>
#include <tvm/runtime/c_backend_api.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace rvv_runner {
namespace {

constexpr int kFastestFirst = 1;  // where TVM_BIND_THREADS binds them
constexpr int kAll = std::numeric_limits<int>::max();

struct Shares {
  size_t count;
  const std::function<void(size_t, size_t)>& share;
};

int RunShare(int task, TVMParallelGroupEnv* group, void* data) {
  const auto& shares = *static_cast<const Shares*>(data);
  const size_t tasks = static_cast<size_t>(group->num_task);
  const size_t step = (shares.count + tasks - 1) / tasks;
  const size_t begin = std::min(static_cast<size_t>(task) * step, shares.count);
  shares.share(begin, std::min(begin + step, shares.count));
  return 0;
}

}  // namespace

void StartThreadPool() {
  thread_local bool started = false;
  if (started) return;
  tvm::ffi::Function::GetGlobalRequired("runtime.config_threadpool")(kFastestFirst, kAll);
  started = true;
}

void ForEachShare(size_t count, const std::function<void(size_t begin, size_t end)>& share) {
  StartThreadPool();
  Shares shares{count, share};
  if (TVMBackendParallelLaunch(RunShare, &shares, 0) != 0) {
    throw std::logic_error("the threads' shares failed");
  }
}

}  // namespace rvv_runner
