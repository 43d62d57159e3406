// SPDX-License-Identifier: Apache-2.0
// Requests to /tokenize and /detokenize, in the form of vLLM's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/fields.h"
#include "text/chat.h"

namespace rvv_runner {

// A text or a chat, of which the tokens are asked.
struct TokenizeRequest {
  std::string model;                // empty: not given
  std::optional<std::string> text;  // else a chat
  ChatInput chat;
  bool first_tokens = true;  // the text begins with those of the model
  bool texts = false;        // tells the text of each token, too
  std::vector<std::string> ignored;
};

// Tokens of which the text is asked.
struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
  std::vector<std::string> ignored;
};

const FieldTable<TokenizeRequest>& TokenizeFields();
const FieldTable<DetokenizeRequest>& DetokenizeFields();

// Read a body. They throw ApiError (400) that names the field at fault.
TokenizeRequest ParseTokenize(std::string_view body);
DetokenizeRequest ParseDetokenize(std::string_view body);

}  // namespace rvv_runner
