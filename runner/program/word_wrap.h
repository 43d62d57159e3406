// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace rvv_runner {

// Breaks a text that comes in pieces into lines of a terminal, between words. A word is held back
// until it is known whether it fits.
class WordWrap {
 public:
  // Columns of the terminal; 0: nothing is broken or held back.
  explicit WordWrap(size_t columns) : columns_(columns) {}

  // What the terminal shows next.
  std::string Next(std::string_view text);
  // What is left.
  std::string Finish();

 private:
  void Space(std::string_view character, size_t width, std::string* out);

  size_t columns_;
  size_t column_ = 0;   // of the terminal's cursor
  bool placed_ = true;  // the word in this line has begun
  std::string word_;    // held back
  size_t width_ = 0;    // of it
};

}  // namespace rvv_runner
