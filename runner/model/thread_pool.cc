// SPDX-License-Identifier: Apache-2.0
#include "model/thread_pool.h"

#include <tvm/ffi/function.h>

#include <limits>

namespace rvv_runner {
namespace {

constexpr int kFastestFirst = 1;  // where TVM_BIND_THREADS binds them
constexpr int kAll = std::numeric_limits<int>::max();

}  // namespace

void StartThreadPool() {
  thread_local bool started = false;
  if (started) return;
  tvm::ffi::Function::GetGlobalRequired("runtime.config_threadpool")(kFastestFirst, kAll);
  started = true;
}

}  // namespace rvv_runner
