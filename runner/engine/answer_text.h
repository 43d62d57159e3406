// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace rvv_runner {

// The text of an answer as it may be shown: whole characters, up to the first stop string. What may
// become a stop string is held back until the text behind it decides.
class StoppedText {
 public:
  // `tokenizer` may be null: there is no text then.
  StoppedText(const Tokenizer* tokenizer, const std::vector<std::string>& stops);

  // What can be shown after this token. After a stop string there is nothing more.
  std::string Next(int32_t token);
  // What was held back, when no token comes any more.
  std::string Finish();
  bool stopped() const { return stopped_; }
  // Nothing is held back: all that the tokens so far say has been given.
  bool whole() const { return held_.empty() && (!text_ || !text_->pending()); }

 private:
  std::string Release(bool end);

  std::optional<AnswerText> text_;
  const std::vector<std::string>& stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace rvv_runner
