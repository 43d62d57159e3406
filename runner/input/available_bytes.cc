// SPDX-License-Identifier: Apache-2.0
#include "input/available_bytes.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace rvv_runner {

namespace {

// The number behind a name in a file of names and numbers; 0 without such a name.
int64_t NumberIn(const std::string& path, const std::string& name) {
  std::ifstream stream(path);
  std::string word;
  while (stream >> word) {
    int64_t number = 0;
    if (word == name) return stream >> number ? number : 0;
  }
  return 0;
}

// The number in a file; -1 for a file without one, such as a limit of "max".
int64_t NumberOf(const std::string& path) {
  int64_t number = 0;
  return std::ifstream(path) >> number ? number : -1;
}

// What the files of a hierarchy of control groups are called.
struct ControlGroups {
  const char* top;
  const char* limit;
  const char* used;
  const char* cached;  // pages that Linux drops for others
};
constexpr ControlGroups kVersion1 = {"/sys/fs/cgroup/memory", "/memory.limit_in_bytes",
                                     "/memory.usage_in_bytes", "total_inactive_file"};
constexpr ControlGroups kVersion2 = {"/sys/fs/cgroup", "/memory.max", "/memory.current",
                                     "inactive_file"};

// The bytes that are left of the limits of a group and of those around it, `most` at most. A container sees
// its own group as the top, and in version 1 a path that it does not see.
int64_t LeftInGroup(const std::string& top, std::string path, const ControlGroups& names,
                    int64_t most) {
  while (true) {
    if (!path.empty() && path.back() == '/') path.pop_back();
    const std::string group = top + path;
    const int64_t limit = NumberOf(group + names.limit);
    const int64_t used = NumberOf(group + names.used);
    if (limit >= 0 && used >= 0) {
      const int64_t held = used - NumberIn(group + "/memory.stat", names.cached);
      // Not 0, which says that nothing is reported.
      most = std::min(most, std::max<int64_t>(limit - held, 1));
    }
    const size_t last = path.rfind('/');
    if (last == std::string::npos) return most;
    path.erase(last);
  }
}

}  // namespace

int64_t AvailableBytes(const std::string& root) {
  int64_t available = NumberIn(root + "/proc/meminfo", "MemAvailable:") * 1024;
  if (available == 0) return 0;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // NUMBER:CONTROLLERS:PATH
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && controllers != "memory") continue;
    const ControlGroups& names = controllers.empty() ? kVersion2 : kVersion1;
    available = LeftInGroup(root + names.top, line.substr(second + 1), names, available);
  }
  return available;
}

int64_t FreeSwapBytes() { return NumberIn("/proc/meminfo", "SwapFree:") * 1024; }

}  // namespace rvv_runner
