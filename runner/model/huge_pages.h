// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace rvv_runner {

// Memory for data that is read in long streams, zeros, in huge pages where the kernel has them: a
// stream crosses fewer pages, so that the prefetcher starts less often. Throws InputError if the
// address space is too small.
std::shared_ptr<char> HugePages(size_t bytes);

// Such memory in small pages, so that each can lie in the node of the thread that writes it first.
std::shared_ptr<char> SmallPages(size_t bytes);

// The number of nodes (NUMA) of this machine's memory; 1 where the kernel does not tell. `folder`
// has a folder for each.
size_t MemoryNodes(const std::string& folder = "/sys/devices/system/node");

// Blocks of memory, one after the other.
class Arena {
 public:
  Arena(std::shared_ptr<char> memory, size_t bytes)
      : memory_(std::move(memory)), next_(memory_.get()), end_(next_ + bytes) {}

  // The bytes that a block takes of the arena: blocks begin on a cache line.
  static size_t BytesOf(size_t block) { return (block + kLine - 1) / kLine * kLine; }

  // The next block. Throws std::logic_error if the arena has no room left.
  char* Take(size_t block);

 private:
  static constexpr size_t kLine = 64;
  std::shared_ptr<char> memory_;
  char* next_;
  char* end_;
};

// Bytes of this process that lie in huge pages; 0 where the kernel does not tell.
int64_t HugePageBytes();

}  // namespace rvv_runner
