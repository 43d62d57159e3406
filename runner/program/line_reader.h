// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace rvv_runner {

// Lines of the standard input. A terminal edits its line itself (canonical mode): backspace, Ctrl-U,
// Ctrl-W. No library for it is linked: Debian's cross compiler for riscv64, which the program is
// built with, comes with none.
class LineReader {
 public:
  // Ctrl-C interrupts instead of ending the program, from now on.
  LineReader();

  struct Line {
    std::string text;
    bool interrupted = false;  // by Ctrl-C; what was typed is gone
  };
  // The next line without its end; nothing at the end of the input.
  std::optional<Line> Next();

  // True once for each Ctrl-C.
  static bool Interrupted();
  // The input is a terminal, which wants to be asked.
  static bool terminal();

 private:
  std::string pending_;
};

}  // namespace rvv_runner
