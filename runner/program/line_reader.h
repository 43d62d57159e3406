// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "program/history.h"

namespace rvv_runner {

// Reads messages of the standard input: edited in a terminal (arrow keys, a history, lines of any
// length, pastes of several lines), or as plain lines where there is none, or where TERM is `dumb`.
class LineReader {
 public:
  // From now on, Ctrl-C does not end the program: Next and Interrupted report it. `history`: the
  // file of earlier messages; empty: none. Throws InputError if it cannot be read.
  explicit LineReader(const std::string& history);
  // Gives the terminal its settings back.
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  struct Line {
    std::string text;
    bool interrupted = false;  // by Ctrl-C; the typed text is dropped
  };
  // The next message, or line without its line end; nullopt at the end of the input. In a terminal,
  // it prints the prompt, and `text` is there to be edited.
  std::optional<Line> Next(const std::string& text = "");

  // Returns true once for each Ctrl-C.
  static bool Interrupted();
  // True if the input is a terminal, where the program prints a prompt.
  static bool terminal();
  bool edits() const { return edits_; }
  // Columns of the terminal that answers are written to; 0 if they go elsewhere.
  static size_t Columns();

  // Most bytes of a line that Linux's terminals take where they do the editing; they drop the rest.
  static constexpr size_t kTerminalLine = 4095;

 private:
  enum class Got { kBytes, kInterrupt, kEnd };
  Got Read();
  std::optional<Line> NextPlain();
  std::optional<Line> NextEdited(const std::string& text);

  bool edits_;
  History history_;
  std::string pending_;
};

}  // namespace rvv_runner
