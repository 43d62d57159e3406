// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace rvv_runner {

// A model's chat template, as the text between messages; see
// scripts/crosslab/tokenizer/chat_frame.py. Which message follows which decides the text:
//   [start] user [end]
//   [start] user [to_assistant] assistant [to_user] user [end]
//   [system_start] system [system_end] user [end]
struct ChatFrame {
  bool known = false;          // the model has a chat template
  bool takes_system = false;   // and it takes a system message
  bool strips_system = false;  // blanks around a system message are dropped
  bool strips_user = false;
  bool strips_assistant = false;
  bool drops_thoughts = false;  // of an earlier answer, what is behind the last </think> is kept
  bool drops_breaks = false;    // without line ends at its beginning
  std::string start;            // before the first user message where no system message is
  std::string system_start;     // before a system message
  std::string system_end;       // between it and the user message
  std::string to_assistant;     // from a user message to the answer that it got
  std::string to_user;          // from an answer to the next user message
  std::string end;              // behind the last user message: the answer comes here
};

struct Message {
  enum class Role { kSystem, kUser, kAssistant };
  Role role;
  std::string content;  // UTF-8
};

// The text of a conversation, up to the answer. Throws InputError when the model has no chat
// template or takes no system message, when messages are not in turn (a system message at most, and
// first; then user and assistant; a user message last), or when a user message is blank.
std::string ChatText(const ChatFrame& frame, std::span<const Message> messages);

// Strips blanks as Python's str.strip() does.
std::string_view Stripped(std::string_view text);

}  // namespace rvv_runner
