// SPDX-License-Identifier: Apache-2.0
// Replaces a header that the TVM wheel does not ship: a queue of bytes.
#pragma once

#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace tvm {
namespace support {

class RingBuffer {
 public:
  size_t bytes_available() const { return bytes_.size() - first_; }

  void Reserve(size_t size) { bytes_.reserve(first_ + size); }

  void Write(const void* data, size_t size) {
    Compact();
    const char* from = static_cast<const char*>(data);
    bytes_.insert(bytes_.end(), from, from + size);
  }

  void Read(void* data, size_t size) {
    if (size > bytes_available()) throw std::out_of_range("fewer bytes than asked for");
    if (size) std::memcpy(data, bytes_.data() + first_, size);
    first_ += size;
  }

  // Passes the oldest bytes, at most `most`, to `take`, and removes as many as `take` returns.
  template <typename F>
  size_t ReadWithCallback(F take, size_t most) {
    const size_t size = most < bytes_available() ? most : bytes_available();
    const size_t taken = take(bytes_.data() + first_, size);
    first_ += taken;
    return taken;
  }

  // Lets `fill` write at most `most` bytes, and keeps as many as `fill` returns.
  template <typename F>
  size_t WriteWithCallback(F fill, size_t most) {
    Compact();
    const size_t before = bytes_.size();
    bytes_.resize(before + most);
    const size_t filled = fill(bytes_.data() + before, most);
    bytes_.resize(before + filled);
    return filled;
  }

 private:
  // Removes the read bytes if they are at least half: then few bytes move.
  void Compact() {
    if (first_ * 2 < bytes_.size()) return;
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }

  std::vector<char> bytes_;
  size_t first_ = 0;
};

}  // namespace support
}  // namespace tvm
