// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace rvv_runner {

// The memory in bytes that this process can take without swapping: of the system, and of its control groups
// where they have a limit (containers). 0 if the system does not report it; `root` holds /proc and /sys.
int64_t AvailableBytes(const std::string& root = "");

// Free room to swap to; 0 without any.
int64_t FreeSwapBytes();

}  // namespace rvv_runner
