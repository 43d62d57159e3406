// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/sampling.h"
#include "grammar/grammar.h"
#include "text/chat.h"

namespace rvv_runner {

// A prompt of /v1/completions: text, or token ids.
using ApiPrompt = std::variant<std::string, std::vector<int32_t>>;

// A request to /v1/chat/completions or /v1/completions.
struct ApiRequest {
  bool chat = false;
  std::string model;               // empty: not given
  ChatInput chat_input;            // of a chat
  std::vector<ApiPrompt> prompts;  // else
  Sampling sampling;
  int64_t n = 1;  // answers to each prompt
  bool stream = false;
  bool include_usage = false;         // of a stream
  std::optional<OrderedJson> schema;  // that the answer has to match
  std::vector<Tool> tools;            // that the answer may call
  bool must_call = false;             // and has to
  bool parallel = true;               // it may call several
  std::vector<std::string> ignored;   // unknown fields

  size_t answers() const { return static_cast<size_t>(n) * (chat ? 1 : prompts.size()); }
};

constexpr char kSchemaField[] = "response_format.json_schema.schema";
constexpr size_t kMostMessages = 1024;
constexpr size_t kMostTools = 128;
constexpr int64_t kMostCalls = 16;  // of one answer
constexpr size_t kMostPrompts = 16;
constexpr int64_t kMostAnswers = 16;  // of one request

// Reads a body. Missing fields get the values of `defaults`. Throws ApiError (400) that names the
// field if its type or value is wrong, or if it is known, unsupported and could change the answer.
// With `strict`, each unknown field is refused, too.
ApiRequest ParseApiRequest(bool chat, std::string_view body, const Sampling& defaults,
                           bool strict = false);

}  // namespace rvv_runner
