// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace rvv_runner {

// The memory in bytes that programs can take without swapping; 0 if the system does not report it.
int64_t AvailableBytes();

}  // namespace rvv_runner
