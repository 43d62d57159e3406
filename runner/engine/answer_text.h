// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace rvv_runner {

// The text of an answer that may be shown: whole characters, up to the first stop string. A
// possible beginning of a stop string is held back until the text behind it decides.
class StoppedText {
 public:
  // `tokenizer` may be null; then there is no text. `continues`: as in AnswerText.
  StoppedText(const Tokenizer* tokenizer, const std::vector<std::string>& stops, bool continues);

  // The text that this token completes. Empty after a stop string.
  std::string Next(int32_t token);
  // The text that was held back, after the last token.
  std::string Finish();
  bool stopped() const { return stopped_; }
  // True if the text of all tokens so far has been returned.
  bool whole() const { return held_.empty() && (!text_ || !text_->pending()); }

 private:
  std::string Release(bool end);

  std::optional<AnswerText> text_;
  const std::vector<std::string>& stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace rvv_runner
