// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace rvv_runner {

// What starts at one byte of a text.
struct Decoded {
  uint32_t code = 0;   // the code point, when it is whole
  size_t length = 0;   // its bytes; of a broken one, those that could have begun it (at least 1)
  bool whole = false;  // a code point, and not a broken sequence
  bool open = false;   // broken only because the text ends here
};

// Reads the code point at byte `at` (less than the text's size). Overlong forms, surrogates and
// what lies beyond U+10FFFF are broken (Unicode, table 3-7).
Decoded DecodeAt(std::string_view text, size_t at);

// Writes a code point behind a text.
void AppendUtf8(uint32_t code, std::string* text);

// Characters that begin in these bytes: all but those that go on with one.
size_t Characters(std::string_view bytes);

// Where a text stops being UTF-8; nothing when it is UTF-8 to its end.
std::optional<size_t> FirstBroken(std::string_view text);

// Makes whole characters of bytes that come in pieces. A broken sequence becomes one U+FFFD for
// each of its longest beginnings, as Unicode recommends and as Python's "replace" does.
class Utf8Stream {
 public:
  // The characters that are complete after these bytes.
  std::string Feed(std::string_view bytes);
  // What is left when no more bytes come: nothing, or one U+FFFD.
  std::string Finish();
  // Bytes of a character that is not whole yet are kept.
  bool pending() const { return !pending_.empty(); }

 private:
  std::string pending_;
};

}  // namespace rvv_runner
