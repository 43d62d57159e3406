// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rvv_runner {

// The code point, or broken sequence, at one byte of a text.
struct Decoded {
  uint32_t code = 0;   // the code point, when it is whole
  size_t length = 0;   // its bytes; of a broken one, those that could have begun it (at least 1)
  bool whole = false;  // a code point, and not a broken sequence
  bool open = false;   // broken only because the text ends here
};

// Reads the code point at byte `at` (less than the text's size). Overlong forms, surrogates and
// code points beyond U+10FFFF are broken (Unicode, table 3-7).
Decoded DecodeAt(std::string_view text, size_t at);

// Appends a code point to a text.
void AppendUtf8(uint32_t code, std::string* text);

// The number of characters that begin in these bytes.
size_t Characters(std::string_view bytes);

// A text without the byte order mark that some editors and programs write before it.
std::string_view WithoutMark(std::string_view text);

// The first byte that is not UTF-8; nullopt if the whole text is UTF-8.
std::optional<size_t> FirstBroken(std::string_view text);

// Joins bytes that come in pieces to whole characters. A broken sequence becomes one U+FFFD for
// each of its longest beginnings, as Unicode recommends and as Python's "replace" does.
class Utf8Stream {
 public:
  // The characters that these bytes complete.
  std::string Feed(std::string_view bytes);
  // The rest after the last bytes: empty, or one U+FFFD.
  std::string Finish();
  // True if the bytes of an incomplete character are kept.
  bool pending() const { return !pending_.empty(); }

 private:
  std::string pending_;
};

}  // namespace rvv_runner
