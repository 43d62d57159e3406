// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace rvv_runner {

// Reads lines of the standard input. The terminal does the line editing (canonical mode: backspace,
// Ctrl-U, Ctrl-W), because Debian's cross toolchain for riscv64 has no library for it.
class LineReader {
 public:
  // Most bytes of a line that Linux's terminals take in canonical mode; they drop the rest.
  static constexpr size_t kTerminalLine = 4095;

  // From now on, Ctrl-C does not end the program: Next and Interrupted report it.
  LineReader();

  struct Line {
    std::string text;
    bool interrupted = false;  // by Ctrl-C; the typed text is dropped
  };
  // The next line without its line end; nullopt at the end of the input.
  std::optional<Line> Next();

  // Returns true once for each Ctrl-C.
  static bool Interrupted();
  // True if the input is a terminal, where the program prints a prompt.
  static bool terminal();

 private:
  std::string pending_;
};

}  // namespace rvv_runner
