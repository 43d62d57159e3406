// SPDX-License-Identifier: Apache-2.0
#include "input/available_bytes.h"

#include <fstream>
#include <string>

namespace rvv_runner {

int64_t AvailableBytes() {
  std::ifstream stream("/proc/meminfo");
  std::string word;
  while (stream >> word) {
    int64_t kibibytes = 0;
    if (word == "MemAvailable:") return stream >> kibibytes ? kibibytes * 1024 : 0;
  }
  return 0;
}

}  // namespace rvv_runner
