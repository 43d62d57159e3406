// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "program/word_wrap.h"
#include "text/answer_parts.h"
#include "text/chat.h"

namespace rvv_runner {

// Prints an answer to a chat while it is computed. If the model answers in channels, its thoughts go
// to the standard error, between <think> and </think>, and only the answer's text to the standard
// output. Other answers are printed as they are.
class AnswerPrinter {
 public:
  // `columns`: of the terminal, in which lines are broken between words; 0: they are not broken.
  AnswerPrinter(const ChatTemplate& chat, size_t columns);

  void Next(std::string_view piece);
  // Prints the rest and ends the line.
  void Finish();
  // The answer's text without thoughts in channels, as a next prompt has it.
  const std::string& text() const { return text_; }

 private:
  void Print(const std::vector<AnswerPart>& parts);
  void EndThought();

  const size_t columns_;
  AnswerParts parts_;
  WordWrap wrap_;
  bool thinks_ = false;  // the last part was a thought
  std::string text_;
};

}  // namespace rvv_runner
