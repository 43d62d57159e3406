// SPDX-License-Identifier: Apache-2.0
#include "model/huge_pages.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>

#include "input/errors.h"

namespace rvv_runner {
namespace {

// Of x86-64, and of RISC-V's Sv39 to Sv57.
constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

std::shared_ptr<char> HugePages(size_t bytes) {
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
  madvise(first, mapped - kHugePage, MADV_HUGEPAGE);
  return {first, [=](char*) { munmap(memory, mapped); }};
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
