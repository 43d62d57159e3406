// SPDX-License-Identifier: Apache-2.0
#include "program/word_wrap.h"

#include <utility>

#include "input/utf8.h"
#include "text/unicode.h"

namespace rvv_runner {

std::string WordWrap::Next(std::string_view text) {
  if (columns_ == 0) return std::string(text);
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Decoded decoded = DecodeAt(text, at);
    const std::string_view character = text.substr(at, decoded.length);
    at += decoded.length;
    const size_t width = ColumnsOf(decoded.code);
    if (decoded.code == '\n' || IsSpace(decoded.code)) {
      out += Finish();
      Space(character, width, &out);
    } else if (placed_) {
      out += character;
      // The terminal breaks a word that is longer than a line.
      column_ = column_ + width > columns_ ? width : column_ + width;
    } else {
      word_ += character;
      width_ += width;
      if (column_ + width_ > columns_) {
        out += "\n";
        column_ = 0;
        out += Finish();
        placed_ = true;
      }
    }
    // A line can be broken behind wide characters, as of Chinese, though no blank follows.
    if (width == 2) {
      out += Finish();
      placed_ = false;
    }
  }
  return out;
}

void WordWrap::Space(std::string_view character, size_t width, std::string* out) {
  placed_ = character == "\n";
  if (placed_) {
    *out += '\n';
    column_ = 0;
  } else if (column_ < columns_) {  // not at the begin of the next line
    *out += character;
    column_ += character == "\t" ? 8 - column_ % 8 : width;
  }
}

std::string WordWrap::Finish() {
  column_ += std::exchange(width_, 0);
  return std::exchange(word_, "");
}

}  // namespace rvv_runner
