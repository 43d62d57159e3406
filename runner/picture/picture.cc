// SPDX-License-Identifier: Apache-2.0
#include "picture/picture.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>

#include "input/errors.h"
#include "picture/orientation.h"

namespace {

using rvv_runner::Orientation;
using rvv_runner::Picture;

// Bytes that the decoder may still allocate. It asks before it believes a file's sizes: a short file
// can be inflated without end.
int64_t room = 0;

void* Allocate(size_t bytes) {
  if (bytes > static_cast<size_t>(room)) return nullptr;
  room -= static_cast<int64_t>(bytes);
  return std::malloc(bytes);
}

// What is allocated again counts twice.
void* Reallocate(void* memory, size_t bytes) {
  if (bytes > static_cast<size_t>(room)) return nullptr;
  room -= static_cast<int64_t>(bytes);
  return std::realloc(memory, bytes);
}

Picture Upright(const uint8_t* pixels, int64_t width, int64_t height, Orientation held) {
  Picture picture{width, height, std::vector<uint8_t>(static_cast<size_t>(3 * width * height))};
  if (held.exchanged) std::swap(picture.width, picture.height);
  uint8_t* to = picture.pixels.data();
  for (int64_t y = 0; y < picture.height; ++y) {
    for (int64_t x = 0; x < picture.width; ++x, to += 3) {
      const auto [row, column] = held.exchanged ? std::pair(x, y) : std::pair(y, x);
      const int64_t from = (held.rows ? height - 1 - row : row) * width +
                           (held.columns ? width - 1 - column : column);
      std::copy_n(pixels + 3 * from, 3, to);
    }
  }
  return picture;
}

}  // namespace

#define STBI_MALLOC(bytes) Allocate(bytes)
#define STBI_REALLOC(memory, bytes) Reallocate(memory, bytes)
#define STBI_FREE(memory) std::free(memory)
#define STBI_ONLY_PNG
#define STBI_ONLY_JPEG
#define STBI_NO_STDIO
#define STBI_NO_THREAD_LOCALS
#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
// It copies the 0 bytes of an empty chunk to a null pointer.
#ifdef __clang__
#pragma clang attribute push(__attribute__((no_sanitize("nonnull-attribute"))), apply_to = function)
#endif
#include <stb_image.h>
#ifdef __clang__
#pragma clang attribute pop
#endif

namespace rvv_runner {

Picture DecodePicture(std::string_view file, int64_t most) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  room = kMostDecoding;
  const auto* bytes = reinterpret_cast<const stbi_uc*>(file.data());
  if (file.size() >= size_t{1} << 30) throw InputError("has over 1 GiB");
  const int size = static_cast<int>(file.size());
  int width = 0, height = 0, channels = 0;
  if (stbi_info_from_memory(bytes, size, &width, &height, &channels) == 0) {
    throw InputError("is not a PNG or JPEG file");
  }
  if (int64_t{width} * height > most) {
    throw InputError("has " + std::to_string(width) + " x " + std::to_string(height) +
                     " pixels, more than " + std::to_string(most));
  }
  const std::unique_ptr<stbi_uc, decltype(&std::free)> decoded(
      stbi_load_from_memory(bytes, size, &width, &height, &channels, 3), &std::free);
  if (decoded == nullptr) {
    const char* reason = stbi_failure_reason();
    if (std::string_view(reason) == "outofmem") {
      throw InputError("takes more than " + std::to_string(kMostDecoding >> 20) + " MiB to decode");
    }
    throw InputError("is damaged (" + std::string(reason) + ")");
  }
  return Upright(decoded.get(), width, height, OrientationOf(file));
}

std::string DecodeBase64(std::string_view text) {
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  static const std::array<int8_t, 256> values = [] {
    constexpr std::string_view kLetters =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::array<int8_t, 256> of;
    of.fill(-1);
    int8_t value = 0;
    for (const char letter : kLetters) of[static_cast<uint8_t>(letter)] = value++;
    return of;
  }();
  uint32_t bits = 0;
  int count = 0;
  for (const char letter : text) {
    const int8_t value = values[static_cast<uint8_t>(letter)];
    if (value < 0) throw InputError("is not base64");
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<char>(bits >> count & 0xFF));
  }
  if (count == 6) throw InputError("is not base64: it ends in the middle of a byte");
  return bytes;
}

}  // namespace rvv_runner
