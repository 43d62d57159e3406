// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace rvv_runner {

// The memory in bytes that programs can take without swapping; 0 if the system does not report it.
int64_t AvailableBytes();

// Free room to swap to; 0 without any.
int64_t FreeSwapBytes();

}  // namespace rvv_runner
