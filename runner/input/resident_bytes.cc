// SPDX-License-Identifier: Apache-2.0
#include "input/resident_bytes.h"

#include <unistd.h>

#include <fstream>

namespace rvv_runner {

int64_t ResidentBytes() {
  // The second number of statm: resident pages (proc(5)).
  std::ifstream stream("/proc/self/statm");
  int64_t all = 0, resident = 0;
  return stream >> all >> resident ? resident * sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace rvv_runner
