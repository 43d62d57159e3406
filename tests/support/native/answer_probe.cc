// SPDX-License-Identifier: Apache-2.0
// Decodes ids as they come. Arguments: tokenizer.bin, ids. A line of JSON text for each, and one
// for what is left at the end.
#include <iostream>
#include <string>

#include "input/json.h"
#include "input/read_file.h"
#include "text/tokenizer.h"

int main(int argc, char** argv) {
  using namespace rvv_runner;
  const Tokenizer tokenizer(ParseTokenizerFile(ReadFile(argv[1]), argv[1]));
  AnswerText answer(tokenizer);
  for (int i = 2; i < argc; ++i) std::cout << Written(answer.Next(std::stoi(argv[i]))) << "\n";
  std::cout << Written(answer.Finish()) << "\n";
  return 0;
}
