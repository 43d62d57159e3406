// SPDX-License-Identifier: Apache-2.0
#include "model/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>

#include "input/errors.h"

namespace rvv_runner {
namespace {

// Of x86-64, and of RISC-V's Sv39 to Sv57.
constexpr size_t kHugePage = size_t{2} << 20;

std::shared_ptr<char> Pages(size_t bytes, int advice) {
  // Whole huge pages behind the first border of one.
  const size_t mapped = (bytes / kHugePage + 2) * kHugePage;
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw InputError("cannot allocate " + std::to_string(bytes) +
                     " bytes for parameters: " + std::strerror(errno));
  }
  const size_t over = reinterpret_cast<uintptr_t>(memory) % kHugePage;
  char* first = static_cast<char*>(memory) + (over == 0 ? 0 : kHugePage - over);
  // Only advice: a kernel without transparent huge pages refuses it, and small pages serve, too.
  madvise(first, mapped - kHugePage, advice);
  return {first, [=](char*) { munmap(memory, mapped); }};
}

}  // namespace

std::shared_ptr<char> HugePages(size_t bytes) { return Pages(bytes, MADV_HUGEPAGE); }

std::shared_ptr<char> SmallPages(size_t bytes) { return Pages(bytes, MADV_NOHUGEPAGE); }

size_t MemoryNodes(const std::string& folder) {
  size_t nodes = 0;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failed)) {
    const std::string name = entry.path().filename();
    nodes += name.size() > 4 && name.starts_with("node") &&
             name.find_first_not_of("0123456789", 4) == std::string::npos;
  }
  return std::max<size_t>(nodes, 1);
}

char* Arena::Take(size_t block) {
  const size_t bytes = BytesOf(block);
  if (bytes > static_cast<size_t>(end_ - next_)) throw std::logic_error("the arena is full");
  char* taken = next_;
  next_ += bytes;
  return taken;
}

int64_t HugePageBytes() {
  std::ifstream stream("/proc/self/smaps_rollup");
  std::string word;
  while (stream >> word) {
    int64_t kibibytes = 0;
    if (word == "AnonHugePages:") return stream >> kibibytes ? kibibytes * 1024 : 0;
    stream.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

}  // namespace rvv_runner
