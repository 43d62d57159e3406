// SPDX-License-Identifier: Apache-2.0
// Runs the runner's tokenizer alone. Arguments: tokenizer.bin, and "raw", "chat", "turns" (a chat
// of several messages, each after an S, U or A and before a NUL), "conversation" (JSON with messages
// and tools) or "decode" (ids in decimals).
// Standard input: texts, each after its length (uint32, little-endian). One line of JSON for each:
// its ids, how many bytes have no token, and the ids' text as it comes in pieces.
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "input/errors.h"
#include "input/json.h"
#include "input/read_file.h"
#include "text/tokenizer.h"

using namespace rvv_runner;

namespace {

std::vector<Message> Turns(const std::string& text) {
  std::vector<Message> messages;
  for (size_t at = 0, end; (end = text.find('\0', at)) != std::string::npos; at = end + 1) {
    const auto role = text[at] == 'S'   ? Message::Role::kSystem
                      : text[at] == 'U' ? Message::Role::kUser
                                        : Message::Role::kAssistant;
    messages.push_back({role, text.substr(at + 1, end - at - 1)});
  }
  return messages;
}

Encoded Ids(const std::string& text) {
  Encoded encoded;
  std::istringstream stream(text);
  for (int32_t id = 0; stream >> id;) encoded.ids.push_back(id);
  return encoded;
}

Encoded Rendered(const Tokenizer& tokenizer, const std::string& text) {
  const auto asked = OrderedJson::parse(text);
  return EncodeChat(tokenizer, ChatInput{asked["messages"], asked["tools"]}, "text");
}

void Answer(const Tokenizer& tokenizer, const std::string& text, const std::string& mode) {
  try {
    const Encoded encoded = mode == "decode"         ? Ids(text)
                            : mode == "conversation" ? Rendered(tokenizer, text)
                            : mode == "turns"
                                ? EncodeChat(tokenizer, Turns(text), "text")
                                : EncodePrompt(tokenizer, text, mode == "raw", "text");
    AnswerText answer(tokenizer);
    std::string ids;
    std::string pieces;
    for (const int32_t id : encoded.ids) {
      ids += (ids.empty() ? "" : ",") + std::to_string(id);
      pieces += answer.Next(id);
    }
    pieces += answer.Finish();
    std::cout << "{\"ids\":[" << ids << "],\"dropped\":" << encoded.dropped
              << ",\"text\":" << Written(pieces) << "}\n";
  } catch (const InputError& error) {
    std::cout << "{\"error\":" << Written(error.what()) << "}\n";
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    const Tokenizer tokenizer(ParseTokenizerFile(ReadFile(argv[1]), argv[1]));
    const std::string input = ReadFile("-");
    for (size_t at = 0; at + 4 <= input.size();) {
      size_t length = 0;
      for (int i = 3; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(input[at + i]);
      Answer(tokenizer, input.substr(at + 4, length), argv[2]);
      at += 4 + length;
    }
  } catch (const InputError& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
  return 0;
}
