// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace rvv_runner {

// Sets the number of threads that compute. 0: TVM_NUM_THREADS if it is set, or else the physical
// cores that can run the model library. Call it after the library is opened, which keeps the
// process on these cores, and before anything is computed. The system chooses a core for each
// thread, and idle threads sleep soon, unless TVM's own variables say otherwise.
void SetThreads(int64_t threads);

}  // namespace rvv_runner
