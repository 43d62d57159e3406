// SPDX-License-Identifier: Apache-2.0
// Runs the runner's tokenizer alone. Arguments: tokenizer.bin, and "raw" or "chat". Standard
// input: texts, each after its length (uint32, little-endian). One line of JSON for each: its ids,
// how many bytes have no token, and the ids' text as it comes in pieces.
#include <iostream>
#include <string>

#include "input/errors.h"
#include "input/json.h"
#include "input/read_file.h"
#include "text/tokenizer.h"

using namespace rvv_runner;

namespace {

void Answer(const Tokenizer& tokenizer, const std::string& text, bool raw) {
  try {
    const Encoded encoded = EncodePrompt(tokenizer, text, raw, "text");
    AnswerText answer(tokenizer);
    std::string ids;
    std::string pieces;
    for (const int32_t id : encoded.ids) {
      ids += (ids.empty() ? "" : ",") + std::to_string(id);
      pieces += answer.Next(id);
    }
    pieces += answer.Finish();
    std::cout << "{\"ids\":[" << ids << "],\"dropped\":" << encoded.dropped
              << ",\"text\":" << Quoted(pieces) << "}\n";
  } catch (const InputError& error) {
    std::cout << "{\"error\":" << Quoted(error.what()) << "}\n";
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
      Answer(tokenizer, input.substr(at + 4, length), std::string(argv[2]) == "raw");
      at += 4 + length;
    }
  } catch (const InputError& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
