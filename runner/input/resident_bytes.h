// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace rvv_runner {

// Bytes of this process that are in memory; 0 where the system does not say.
int64_t ResidentBytes();

}  // namespace rvv_runner
