// SPDX-License-Identifier: Apache-2.0
#include "engine/answer_text.h"

#include <algorithm>

#include "text/answer_parts.h"

namespace rvv_runner {

StoppedText::StoppedText(const Tokenizer* tokenizer, const std::vector<std::string>& stops,
                         bool continues)
    : stops_(stops) {
  if (tokenizer != nullptr) text_.emplace(*tokenizer, continues);
}

std::string StoppedText::Next(int32_t token) {
  if (stopped_ || !text_) return {};
  held_ += text_->Next(token);
  return Release(false);
}

std::string StoppedText::Finish() {
  if (stopped_ || !text_) return {};
  held_ += text_->Finish();
  return Release(true);
}

std::string StoppedText::Release(bool end) {
  size_t show = held_.size();
  for (const std::string& stop : stops_) {
    if (const size_t found = held_.find(stop); found != std::string::npos) {
      stopped_ = true;
      show = std::min(show, found);
    }
  }
  if (!stopped_ && !end) {
    // Hold back the longest end of the text that is the beginning of a stop string.
    for (const std::string& stop : stops_) {
      show = std::min(show, held_.size() - Beginning(held_, stop));
    }
  }
  std::string shown = held_.substr(0, show);
  held_.erase(0, stopped_ ? std::string::npos : show);
  return shown;
}

}  // namespace rvv_runner
