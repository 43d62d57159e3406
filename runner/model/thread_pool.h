// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

namespace rvv_runner {

// Starts the calling thread's pool of threads that compute, with as many as TVM_NUM_THREADS says.
// TVM's runtime by itself uses only as many as there are cores of the highest frequency, which on a
// CPU with two kinds of core are a part of them. Only the first call on a thread does something.
void StartThreadPool();

// Calls `share` with each thread's part of a range, [begin, end), on this thread: as many parts of
// nearly equal size as the calling thread's pool has threads, as compiled loops share their work.
// Returns when all have ended.
void ForEachShare(size_t count, const std::function<void(size_t begin, size_t end)>& share);

}  // namespace rvv_runner
