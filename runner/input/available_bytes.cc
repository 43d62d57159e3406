// SPDX-License-Identifier: Apache-2.0
#include "input/available_bytes.h"

#include <fstream>
#include <string>

namespace rvv_runner {

namespace {

// A size that the kernel reports, in bytes; 0 if it does not.
int64_t MemoryInfo(const std::string& name) {
  std::ifstream stream("/proc/meminfo");
  std::string word;
  while (stream >> word) {
    int64_t kibibytes = 0;
    if (word == name) return stream >> kibibytes ? kibibytes * 1024 : 0;
  }
  return 0;
}

}  // namespace

int64_t AvailableBytes() { return MemoryInfo("MemAvailable:"); }

int64_t FreeSwapBytes() { return MemoryInfo("SwapFree:"); }

}  // namespace rvv_runner
