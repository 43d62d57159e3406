// SPDX-License-Identifier: Apache-2.0
// Replaces a header that the TVM wheel lacks: base64 in front of another stream.
// Both directions hold the whole text in memory, which is what a tensor in JSON needs.
#pragma once

#include <tvm/ffi/extra/base64.h>
#include <tvm/ffi/string.h>
#include <tvm/support/io.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace tvm {
namespace support {

// Collects bytes; Finish() writes their base64 text to the next stream.
class Base64OutStream : public Stream {
 public:
  using Stream::Read;
  using Stream::Write;

  explicit Base64OutStream(Stream* behind) : behind_(behind) {}

  size_t Read(void*, size_t) override {
    throw std::logic_error("Base64OutStream cannot be read from");
  }

  size_t Write(const void* data, size_t size) override {
    plain_.append(static_cast<const char*>(data), size);
    return size;
  }

  void Finish() {
    const ffi::String text = ffi::Base64Encode(ffi::Bytes(plain_));
    behind_->Write(text.data(), text.size());
    plain_.clear();
  }

 private:
  Stream* behind_;
  std::string plain_;
};

// InitPosition() reads and decodes the next stream; then Read() returns the bytes.
class Base64InStream : public Stream {
 public:
  using Stream::Read;
  using Stream::Write;

  explicit Base64InStream(Stream* behind) : behind_(behind) {}

  void InitPosition() {
    std::string text;
    char piece[4096];
    while (const size_t count = behind_->Read(piece, sizeof(piece))) text.append(piece, count);
    plain_ = ffi::Base64Decode(ffi::String(text));
    position_ = 0;
  }

  size_t Read(void* target, size_t size) override {
    const size_t count = std::min(size, plain_.size() - position_);
    if (count > 0) std::memcpy(target, plain_.data() + position_, count);
    position_ += count;
    return count;
  }

  size_t Write(const void*, size_t) override {
    throw std::logic_error("Base64InStream cannot be written to");
  }

 private:
  Stream* behind_;
  ffi::Bytes plain_;
  size_t position_ = 0;
};

}  // namespace support
}  // namespace tvm
