// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace rvv_runner {

// Starts the calling thread's pool of threads that compute, with as many as TVM_NUM_THREADS says.
// TVM's runtime by itself uses only as many as there are cores of the highest frequency, which on a
// CPU with two kinds of core are a part of them. Only the first call on a thread does something.
void StartThreadPool();

}  // namespace rvv_runner
