// SPDX-License-Identifier: Apache-2.0
// Runs a compiled language model on TVM's runtime: prompt of token ids in, greedy answer out.
// Exit code 0: answered; 1: the library or the runtime failed; 2: the input is at fault.
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "arguments.h"
#include "errors.h"
#include "generate.h"
#include "model.h"
#include "params.h"
#include "report.h"

namespace rvv_runner {
namespace {

int Run(const std::vector<std::string>& words) {
  const Arguments arguments = ParseArguments(words);
  if (arguments.help) {
    std::cout << kUsage;
    return 0;
  }
  const Library library(arguments.library, arguments.check_vlen);
  const Limits limits = LimitsOf(library, arguments);
  const std::vector<WantedParam> wanted = WantedParams(library.metadata());
  const auto params = LoadParams(arguments.params, wanted);
  const int64_t vocabulary =
      arguments.vocab ? arguments.vocab : VocabularySize(wanted, params).value_or(0);
  if (vocabulary == 0) {
    throw InputError("no parameter is named as an embedding; give the vocabulary with --vocab");
  }
  CheckTokens(arguments.tokens, vocabulary);
  LogitsFile logits(arguments.logits);
  Model model(library, params, limits.max_seq, limits.chunk, arguments.region);
  const Answer answer = Generate(&model, arguments, limits,
                                 [&](const std::vector<float>& row) { logits.Add(row); });
  logits.Close();
  Report(arguments, answer, std::cout);
  std::cout.flush();
  return std::cout ? 0 : 1;
}

}  // namespace
}  // namespace rvv_runner

int main(int argc, char** argv) {
  try {
    return rvv_runner::Run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const rvv_runner::InputError& error) {
    std::cerr << "runner: " << error.what() << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "runner: failed: " << error.what() << "\n";
    return 1;
  }
}
