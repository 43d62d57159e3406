// SPDX-License-Identifier: Apache-2.0
// Replaces a header that the TVM wheel lacks: streams over bytes in memory.
#pragma once

#include <tvm/ffi/string.h>
#include <tvm/support/io.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace tvm {
namespace support {

// Reads bytes that the caller keeps alive.
class BytesInStream : public Stream {
 public:
  using Stream::Read;
  using Stream::Write;

  BytesInStream(const char* data, size_t size) : data_(data), left_(size) {}
  explicit BytesInStream(const std::string& text) : BytesInStream(text.data(), text.size()) {}
  explicit BytesInStream(const ffi::Bytes& bytes) : BytesInStream(bytes.data(), bytes.size()) {}

  size_t Read(void* target, size_t size) override {
    const size_t count = std::min(size, left_);
    if (count > 0) std::memcpy(target, data_, count);
    data_ += count;
    left_ -= count;
    return count;
  }

  size_t Write(const void*, size_t) override {
    throw std::logic_error("BytesInStream cannot be written to");
  }

 private:
  const char* data_;
  size_t left_;
};

// Appends to the caller's string.
class BytesOutStream : public Stream {
 public:
  using Stream::Read;
  using Stream::Write;

  explicit BytesOutStream(std::string* target) : target_(target) {}

  size_t Read(void*, size_t) override {
    throw std::logic_error("BytesOutStream cannot be read from");
  }

  size_t Write(const void* data, size_t size) override {
    target_->append(static_cast<const char*>(data), size);
    return size;
  }

 private:
  std::string* target_;
};

}  // namespace support
}  // namespace tvm
