// SPDX-License-Identifier: Apache-2.0
// Replaces a header that the TVM wheel lacks: byte streams with typed access.
#pragma once

#include <cstddef>
#include <type_traits>

namespace tvm {
namespace support {

template <typename T, typename Enable = void>
struct Serializer;

// A source or sink of bytes. Typed values go through Serializer<T>, in the order they are
// written and without any framing.
class Stream {
 public:
  virtual ~Stream() = default;

  // Reads up to `size` bytes; returns the number of bytes read.
  virtual size_t Read(void* data, size_t size) = 0;
  // Writes `size` bytes; returns the number of bytes written.
  virtual size_t Write(const void* data, size_t size) = 0;

  // Reads a value; returns true if the whole value was read.
  template <typename T>
  bool Read(T* value) {
    return Serializer<T>::Read(this, value);
  }

  template <typename T>
  void Write(const T& value) {
    Serializer<T>::Write(this, value);
  }

  // Arrays are stored without a length: the caller knows the length.
  template <typename T>
  bool ReadArray(T* values, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (!Read(values + i)) return false;
    }
    return true;
  }

  template <typename T>
  void WriteArray(const T* values, size_t count) {
    for (size_t i = 0; i < count; ++i) Write(values[i]);
  }
};

}  // namespace support
}  // namespace tvm

#include <tvm/support/serializer.h>
