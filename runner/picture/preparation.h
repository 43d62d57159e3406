// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "input/json.h"
#include "picture/picture.h"

namespace rvv_runner {

// Pixels as a model's tower gets them, before they become numbers: red of all, then green and blue.
struct PreparedPicture {
  std::vector<uint8_t> pixels;
  std::array<uint32_t, 4> digest;  // of the pixels

  // The number of one of its tokens in the key of a prompt; below 0, unlike tokens. Four of them in
  // a row have the digest.
  int32_t Key(int64_t token) const {
    return static_cast<int32_t>(digest[token % digest.size()] | uint32_t{1} << 31);
  }
};

// A picture at its place in a prompt.
struct PromptPicture {
  int64_t first = 0;  // of its tokens
  int64_t tokens = 0;
  std::shared_ptr<const PreparedPicture> picture;
};

// How a model reads pictures: what its preprocessor_config.json says, from the library's metadata.
struct Preparation {
  int64_t shortest = 0;  // pixels of the shorter side after resizing
  int64_t size = 0;      // of both sides of the part in the middle that is read
  bool cubic = true;     // the filter that resizes; else a linear one
  float scale = 0;       // of each number
  std::array<float, 3> mean = {};
  std::array<float, 3> deviation = {};
  int32_t token = 0;   // that a prompt has in a picture's place
  int64_t tokens = 0;  // that it becomes
  int64_t bytes = 0;   // of its states
};

constexpr int64_t kMostPictures = 16;  // of one prompt

// Reads a library's metadata of pictures. Throws InputError for wrong fields.
Preparation ReadPreparation(const Json& about);

// Resizes as the library Pillow does, bit by bit, and cuts out the middle.
PreparedPicture Prepare(const Picture& picture, const Preparation& how);
// The numbers [3, size, size] that the tower reads.
std::vector<float> NumbersOf(const PreparedPicture& picture, const Preparation& how);

// Repeats each token of a picture as often as it has states, and returns the places. Throws
// InputError if the prompt has another number of pictures.
std::vector<PromptPicture> PlacePictures(
    const std::vector<std::shared_ptr<const PreparedPicture>>& pictures, const Preparation& how,
    std::vector<int32_t>* tokens);

}  // namespace rvv_runner
