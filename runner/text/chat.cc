// SPDX-License-Identifier: Apache-2.0
#include "text/chat.h"

#include <algorithm>

#include "input/errors.h"
#include "input/utf8.h"
#include "text/unicode.h"

namespace rvv_runner {
namespace {

bool IsBlank(uint32_t code) { return IsSpace(code) || (code >= 0x1C && code <= 0x1F); }

void CheckTurns(const ChatFrame& frame, std::span<const Message> messages) {
  if (!frame.known) throw InputError("this model has no chat template; use --raw");
  auto expected = Message::Role::kUser;
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    if (i == 0 && message.role == Message::Role::kSystem) {
      if (!frame.takes_system) throw InputError("this model's chat takes no system message");
      continue;
    }
    if (message.role != expected) {
      throw InputError("message " + std::to_string(i + 1) +
                       " is out of turn: after at most one system message, user and assistant "
                       "take turns");
    }
    const bool user = expected == Message::Role::kUser;
    if (user && Stripped(message.content).empty()) throw InputError("the prompt is blank");
    expected = user ? Message::Role::kAssistant : Message::Role::kUser;
  }
  if (expected == Message::Role::kUser) {
    throw InputError("a user's message has to be the last one");
  }
}

bool Strips(const ChatFrame& frame, Message::Role role) {
  if (role == Message::Role::kSystem) return frame.strips_system;
  return role == Message::Role::kUser ? frame.strips_user : frame.strips_assistant;
}

// Removes the thoughts (up to </think>) from an earlier answer.
std::string_view Said(const ChatFrame& frame, std::string_view answer) {
  constexpr std::string_view kThought = "</think>";
  const size_t thought = answer.rfind(kThought);
  if (!frame.drops_thoughts || thought == std::string_view::npos) return answer;
  answer.remove_prefix(thought + kThought.size());
  while (frame.drops_breaks && answer.starts_with('\n')) answer.remove_prefix(1);
  return answer;
}

}  // namespace

std::string_view Stripped(std::string_view text) {
  size_t first = text.size();
  size_t end = 0;
  for (size_t at = 0; at < text.size();) {
    const Decoded decoded = DecodeAt(text, at);
    if (!IsBlank(decoded.code)) {
      first = std::min(first, at);
      end = at + decoded.length;
    }
    at += decoded.length;
  }
  return first < end ? text.substr(first, end - first) : std::string_view();
}

std::string ChatText(const ChatFrame& frame, std::span<const Message> messages) {
  CheckTurns(frame, messages);
  const bool system = messages.front().role == Message::Role::kSystem;
  std::string text = system ? frame.system_start : frame.start;
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    std::string_view content = message.content;
    if (message.role == Message::Role::kAssistant) content = Said(frame, content);
    text += Strips(frame, message.role) ? Stripped(content) : content;
    if (message.role == Message::Role::kSystem) {
      text += frame.system_end;
    } else if (message.role == Message::Role::kAssistant) {
      text += frame.to_user;
    } else {
      text += i + 1 < messages.size() ? frame.to_assistant : frame.end;
    }
  }
  return text;
}

}  // namespace rvv_runner
