// SPDX-License-Identifier: Apache-2.0
// Runs a compiled language model on TVM's runtime: prompt of token ids in, greedy answer out.
// Exit code 0: answered; 1: the library or the runtime failed; 2: the input is at fault.
#include <tvm/ffi/error.h>

#include <exception>
#include <iostream>
#include <new>
#include <optional>
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

int64_t Vocabulary(const Arguments& arguments, std::optional<int64_t> rows) {
  if (!rows && !arguments.vocab) {
    throw InputError("no parameter is named as an embedding; give the vocabulary with --vocab");
  }
  if (rows && arguments.vocab > *rows) {
    throw InputError("--vocab " + std::to_string(arguments.vocab) + " is more than the " +
                     std::to_string(*rows) + " rows of the embedding");
  }
  return arguments.vocab ? arguments.vocab : *rows;
}

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
  CheckTokens(arguments.tokens, Vocabulary(arguments, VocabularySize(wanted, params)));
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
  } catch (const tvm::ffi::Error& error) {
    std::cerr << "runner: failed: " << error.kind() << ": " << error.message() << "\n";
    return 1;
  } catch (const std::bad_alloc&) {
    std::cerr << "runner: failed: out of memory\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "runner: failed: " << error.what() << "\n";
    return 1;
  }
}
