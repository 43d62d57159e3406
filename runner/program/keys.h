// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace rvv_runner {

// A key of a terminal, or a pasted text.
struct Key {
  enum class Kind {
    kIgnored,  // without a meaning here
    kText,     // `text` is inserted: a character, or all that was pasted
    kEnter,
    kNewLine,  // Alt-Enter
    kLeft,
    kRight,
    kWordLeft,
    kWordRight,
    kUp,
    kDown,
    kHome,
    kEnd,
    kBackspace,
    kDelete,  // Ctrl-D, too, which ends the input of an empty line
    kEraseWord,
    kEraseBefore,
    kEraseBehind,
    kRedraw,
    kSearch,
    kLeaveSearch,
    kSuspend,
    kInterrupt,
    kEndOfInput,
  };
  Kind kind = Kind::kIgnored;
  std::string text = {};
};

// These codes make a terminal mark a paste, so that its line ends are not taken for Enter.
constexpr std::string_view kPasteOn = "\x1B[?2004h";
constexpr std::string_view kPasteOff = "\x1B[?2004l";

// Removes the first key from the bytes of a terminal. Returns false, and leaves them, if they are
// only the beginning of one.
bool TakeKey(std::string* bytes, Key* key);

}  // namespace rvv_runner
