// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rvv_runner {

// Bounds of a picture's file: more are refused before they take memory.
constexpr int64_t kMostPixels = int64_t{1} << 24;
constexpr int64_t kMostDecoding = int64_t{192} << 20;  // bytes that decoding allocates

// Colours, row by row: red, green and blue of each pixel.
struct Picture {
  int64_t width = 0;
  int64_t height = 0;
  std::vector<uint8_t> pixels;
};

// Decodes a PNG or JPEG file of at most `most` pixels, upright if a JPEG file says how the camera was
// held; transparency is dropped. Only one thread decodes at a time. Throws InputError if it is another
// file, damaged, or beyond the bounds; the caller names the file.
Picture DecodePicture(std::string_view file, int64_t most = kMostPixels);

// The bytes of base64 (RFC 4648), with its padding or without. Throws InputError for other texts.
std::string DecodeBase64(std::string_view text);

}  // namespace rvv_runner
