// SPDX-License-Identifier: Apache-2.0
// Replaces a header that the TVM wheel does not ship: memory that is freed all at once.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace tvm {
namespace support {

class Arena {
 public:
  // Returns aligned, uninitialised memory for `count` values.
  template <typename T>
  T* allocate_(size_t count) {
    const size_t bytes = count * sizeof(T);
    blocks_.emplace_back(::operator new(bytes ? bytes : 1));
    return static_cast<T*>(blocks_.back().get());
  }

  void RecycleAll() { blocks_.clear(); }

 private:
  struct Delete {
    void operator()(void* block) const { ::operator delete(block); }
  };
  std::vector<std::unique_ptr<void, Delete>> blocks_;
};

}  // namespace support
}  // namespace tvm
