// SPDX-License-Identifier: Apache-2.0
#include "program/answer_printer.h"

#include <iostream>

namespace rvv_runner {

AnswerPrinter::AnswerPrinter(const ChatTemplate& chat, size_t columns)
    : columns_(columns),
      parts_(nullptr, chat.has_channels() ? Thoughts::kChannels : Thoughts::kNone),
      wrap_(columns) {}

void AnswerPrinter::Next(std::string_view piece) { Print(parts_.Next(piece)); }

void AnswerPrinter::Finish() {
  Print(parts_.Finish());
  EndThought();
  std::cout << wrap_.Finish() << std::endl;
}

void AnswerPrinter::Print(const std::vector<AnswerPart>& parts) {
  for (const AnswerPart& part : parts) {
    if (part.kind == AnswerPart::Kind::kThought) {
      if (!thinks_) {
        std::cout << wrap_.Finish() << std::flush;
        std::cerr << kThink << "\n";
        wrap_ = WordWrap(columns_);
      }
      thinks_ = true;
      std::cerr << wrap_.Next(part.text) << std::flush;
    } else {
      EndThought();
      text_ += part.text;
      std::cout << wrap_.Next(part.text) << std::flush;
    }
  }
}

void AnswerPrinter::EndThought() {
  if (!thinks_) return;
  thinks_ = false;
  std::cerr << wrap_.Finish() << "\n" << kThinkEnd << "\n";
  wrap_ = WordWrap(columns_);
}

}  // namespace rvv_runner
