// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace rvv_runner {

// Sets the number of threads that compute. 0: TVM_NUM_THREADS if it is set, or else the physical
// cores that can run the model library. Call it after the library is opened, which keeps the
// process on these cores, and before anything is computed. The system chooses a core for each
// thread. Idle threads sleep soon, or at once if there are more threads than CPUs. TVM's own
// variables, where the user sets them, are kept.
void SetThreads(int64_t threads);

}  // namespace rvv_runner
