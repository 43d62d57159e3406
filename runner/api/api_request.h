// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "api/fields.h"
#include "api/tools.h"
#include "engine/sampling.h"
#include "text/chat.h"

namespace rvv_runner {

// A prompt of /v1/completions: text, or token ids.
using ApiPrompt = std::variant<std::string, std::vector<int32_t>>;

enum class ApiKind {
  kChat,      // /v1/chat/completions
  kText,      // /v1/completions
  kResponse,  // /v1/responses, see response_request.h
  kGenerate,  // a prompt that becomes a chat, see ollama_request.h
};

// A request for answers.
struct ApiRequest {
  ApiKind kind = ApiKind::kChat;
  std::string model;               // empty: not given
  ChatInput chat_input;            // of a chat
  std::vector<ApiPrompt> prompts;  // of a text
  Sampling sampling;
  int64_t n = 1;  // answers to each prompt
  bool stream = false;
  bool include_usage = false;        // of a stream
  bool echo = false;                 // the answer begins with the prompt
  bool only_reads = false;           // there are no tokens behind the prompt
  Form form;                         // of the answer
  std::vector<std::string> ignored;  // unknown fields

  bool chat() const { return kind != ApiKind::kText; }
  // The field of the prompt.
  std::string input() const {
    if (kind == ApiKind::kResponse) return "input";
    return kind == ApiKind::kChat ? "messages" : "prompt";  // also of a chat that it becomes
  }
  size_t answers() const { return static_cast<size_t>(n) * (chat() ? 1 : prompts.size()); }
};

constexpr size_t kMostPrompts = 16;
constexpr int64_t kMostAnswers = 16;              // of one request
constexpr int64_t kMostAsked = int64_t{1} << 53;  // that may be asked for; fewer may fit
constexpr int64_t kMostTop = 20;                  // alternatives to a token

// Reads a prompt or a list of at most so many. Throws ApiError (400).
std::vector<ApiPrompt> ReadPrompts(const FieldValue& at, size_t most);
OrderedJson PromptSchema();

// Fields of every request that change nothing.
constexpr const char* kUnusedFields[] = {"user",
                                         "metadata",
                                         "service_tier",
                                         "safety_identifier",
                                         "prompt_cache_key",
                                         "prompt_cache_retention"};

// The fields of a chat or a text.
const FieldTable<ApiRequest>& RequestFields(ApiKind kind);

// Reads a body. Missing fields get the values of `defaults`. Throws ApiError (400) that names the
// field if its type or value is wrong, or if it is known, unsupported and could change the answer.
ApiRequest ParseApiRequest(ApiKind kind, std::string_view body, const Sampling& defaults);

}  // namespace rvv_runner
