// SPDX-License-Identifier: Apache-2.0
// Replaces a header that the TVM wheel lacks: serialization of values to a Stream.
// Scalars and plain structures are little-endian bytes; strings and sequences are a
// 64-bit count followed by their elements.
#pragma once

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/endian.h>
#include <tvm/ffi/string.h>
#include <tvm/support/io.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

static_assert(TVM_FFI_IO_NO_ENDIAN_SWAP, "only little-endian machines are supported");

namespace tvm {
namespace support {

// Numbers, enumerations, and structures of them without padding (DLDevice, DLDataType).
template <typename T>
struct Serializer<T, std::enable_if_t<std::is_trivially_copyable_v<T> &&
                                      std::is_standard_layout_v<T> && !std::is_pointer_v<T>>> {
  static constexpr bool enabled = true;

  static void Write(Stream* stream, const T& value) { stream->Write(&value, sizeof(T)); }
  static bool Read(Stream* stream, T* value) {
    return stream->Read(static_cast<void*>(value), sizeof(T)) == sizeof(T);
  }
};

template <>
struct Serializer<std::string> {
  static constexpr bool enabled = true;

  static void Write(Stream* stream, const std::string& text) {
    stream->Write(static_cast<uint64_t>(text.size()));
    if (!text.empty()) stream->Write(text.data(), text.size());
  }

  // Read in pieces, so that a wrong count does not allocate more than the data.
  static bool Read(Stream* stream, std::string* text) {
    uint64_t left = 0;
    if (!stream->Read(&left)) return false;
    text->clear();
    while (left > 0) {
      const size_t piece = static_cast<size_t>(std::min<uint64_t>(left, uint64_t{1} << 20));
      const size_t start = text->size();
      text->resize(start + piece);
      if (stream->Read(text->data() + start, piece) != piece) return false;
      left -= piece;
    }
    return true;
  }
};

template <>
struct Serializer<ffi::String> {
  static constexpr bool enabled = true;

  static void Write(Stream* stream, const ffi::String& text) {
    Serializer<std::string>::Write(stream, std::string(text));
  }
  static bool Read(Stream* stream, ffi::String* text) {
    std::string plain;
    if (!Serializer<std::string>::Read(stream, &plain)) return false;
    *text = ffi::String(std::move(plain));
    return true;
  }
};

template <typename T>
struct Serializer<std::vector<T>> {
  static constexpr bool enabled = true;

  static void Write(Stream* stream, const std::vector<T>& values) {
    stream->Write(static_cast<uint64_t>(values.size()));
    for (const T& value : values) stream->Write(value);
  }
  static bool Read(Stream* stream, std::vector<T>* values) {
    uint64_t count = 0;
    if (!stream->Read(&count)) return false;
    values->clear();
    for (uint64_t i = 0; i < count; ++i) {
      T value;
      if (!stream->Read(&value)) return false;
      values->push_back(std::move(value));
    }
    return true;
  }
};

template <typename T>
struct Serializer<ffi::Array<T>> {
  static constexpr bool enabled = true;

  static void Write(Stream* stream, const ffi::Array<T>& values) {
    Serializer<std::vector<T>>::Write(stream, std::vector<T>(values.begin(), values.end()));
  }
  static bool Read(Stream* stream, ffi::Array<T>* values) {
    std::vector<T> plain;
    if (!Serializer<std::vector<T>>::Read(stream, &plain)) return false;
    *values = ffi::Array<T>(plain.begin(), plain.end());
    return true;
  }
};

}  // namespace support
}  // namespace tvm
