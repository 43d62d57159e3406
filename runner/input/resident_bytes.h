// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace rvv_runner {

// The resident memory of this process in bytes; 0 if the system does not report it.
int64_t ResidentBytes();

}  // namespace rvv_runner
