// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace rvv_runner {

// Memory in which data that is read in long streams lies one after the other, in huge pages where
// the kernel has them: a stream crosses fewer pages, so that the prefetcher starts less often.
class Arena {
 public:
  // Throws InputError if there is not enough memory.
  explicit Arena(size_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // The bytes that a block takes of the arena: blocks begin on a cache line.
  static size_t BytesOf(size_t block) { return (block + kLine - 1) / kLine * kLine; }

  // The next block, zeros. Throws std::logic_error if the arena has no room left.
  char* Take(size_t block);

 private:
  static constexpr size_t kLine = 64;
  char* memory_;  // as mapped
  size_t mapped_;
  char* next_;  // begins on a huge page
  char* end_;
};

// Bytes of this process that lie in huge pages; 0 where the kernel does not tell.
int64_t HugePageBytes();

}  // namespace rvv_runner
