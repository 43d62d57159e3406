// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "input/json.h"

namespace rvv_runner {

struct Message {
  enum class Role { kSystem, kUser, kAssistant };
  Role role;
  std::string content;  // UTF-8
};

// What a chat template reads.
struct ChatInput {
  // As OpenAI writes them; `content`, a text or a list of parts, and the arguments of calls are read.
  OrderedJson messages;
  OrderedJson tools;  // a list as OpenAI writes it; null: none

  // True if the last message is an answer, which the model continues.
  bool continues() const {
    return !messages.empty() && messages.back().value("role", "") == "assistant";
  }
};

ChatInput ChatInputOf(std::span<const Message> messages);

// The marks of what a model writes before its answer.
inline constexpr std::string_view kThink = "<think>";
inline constexpr std::string_view kThinkEnd = "</think>";
// Those of an answer in messages: <|channel|>NAME<|message|>TEXT<|end|>, and the next one begins
// with <|start|>assistant. The thoughts are in the channel `analysis`, the answer in `final`. A
// message that calls a tool has its name before or behind the channel (gpt-oss).
inline constexpr std::string_view kStart = "<|start|>";
inline constexpr std::string_view kChannel = "<|channel|>";
inline constexpr std::string_view kMessage = "<|message|>";
inline constexpr std::string_view kMessageEnd = "<|end|>";
inline constexpr std::string_view kThoughtChannel = "<|channel|>analysis";
inline constexpr std::string_view kFinal = "<|channel|>final<|message|>";
inline constexpr std::string_view kCallee = " to=functions.";

// The thoughts of an answer.
enum class Thoughts {
  kNone,      // the model has none
  kMay,       // the answer may begin with <think>
  kBegun,     // the prompt ends with <think>
  kChannels,  // the answer is messages in channels
};

// A model's chat template, in the language Jinja. Copies share it; threads may use it.
class ChatTemplate {
 public:
  // No template.
  ChatTemplate() = default;
  // `variables`: the texts that it reads beside the conversation, such as bos_token. Throws
  // InputError if `source` is not a template.
  ChatTemplate(const std::string& source, const OrderedJson& variables);

  bool known() const { return program_ != nullptr; }
  // True if it reads the content of a message as a list of parts, of texts and of pictures.
  bool reads_parts() const;
  // True if it knows answers that begin with <think>thoughts</think>.
  bool thinks() const;
  // True if it knows answers that are messages in channels.
  bool has_channels() const;
  // The text of a conversation, up to the answer. If the last message is the assistant's, the
  // answer continues it. Throws InputError when the model has no template, or when the template
  // refuses the conversation.
  std::string Text(const ChatInput& conversation) const;

 private:
  struct Program;

  std::string Rendered(const OrderedJson& messages, const OrderedJson& tools, bool prompts) const;

  std::shared_ptr<Program> program_;
};

// Strips blanks as Python's str.strip() does.
std::string_view Stripped(std::string_view text);

}  // namespace rvv_runner
