// SPDX-License-Identifier: Apache-2.0
// Runs a compiled language model on TVM's runtime: prompt in, greedy answer out, as text or ids.
// Exit code 0: answered; 1: the library or the runtime failed; 2: the input is at fault.
#include <tvm/ffi/error.h>

#include <exception>
#include <iostream>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "input/errors.h"
#include "input/read_file.h"
#include "model/generate.h"
#include "model/model.h"
#include "model/params.h"
#include "program/arguments.h"
#include "program/report.h"
#include "text/tokenizer.h"

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

constexpr size_t kLongestPrompt = size_t{16} << 20;
constexpr int64_t kMostIds = 16;
constexpr int64_t kMostText = 256;

// Fills in the prompt's ids and where to stop.
Tokenizer ReadPrompt(Arguments* arguments) {
  const std::string& file = arguments->tokenizer;
  Tokenizer tokenizer(ParseTokenizerFile(ReadFile(file), file));
  if (arguments->stop.empty()) arguments->stop = tokenizer.stop();
  if (!arguments->tokens.empty()) return tokenizer;
  const bool typed = arguments->prompt.has_value();
  const std::string text = typed ? *arguments->prompt : ReadFile(arguments->prompt_file, kLongestPrompt);
  const Encoded prompt =
      EncodePrompt(tokenizer, text, arguments->raw, typed ? "--prompt" : "--prompt-file");
  if (prompt.dropped > 0) {
    std::cerr << "runner: the model has no tokens for " << prompt.dropped
              << " bytes of the prompt; they are left out\n";
  }
  arguments->tokens = prompt.ids;
  return tokenizer;
}

// Prints an answer as it comes, or (with --json) keeps it.
class Speaker {
 public:
  Speaker(const Tokenizer& tokenizer, bool aloud) : answer_(tokenizer), aloud_(aloud) {}

  void Next(int32_t token) { Say(answer_.Next(token)); }

  void Finish() {
    Say(answer_.Finish());
    if (aloud_) std::cout << std::endl;
  }

  const std::string& text() const { return text_; }

 private:
  void Say(const std::string& piece) {
    text_ += piece;
    if (aloud_) std::cout << piece << std::flush;
  }

  AnswerText answer_;
  bool aloud_;
  std::string text_;
};

int Run(const std::vector<std::string>& words) {
  Arguments arguments = ParseArguments(words);
  if (arguments.help) {
    std::cout << kUsage;
    return 0;
  }
  std::optional<Tokenizer> tokenizer;
  std::optional<Speaker> speaker;
  if (!arguments.tokenizer.empty()) {
    tokenizer.emplace(ReadPrompt(&arguments));
    speaker.emplace(*tokenizer, !arguments.json);
  }
  const Library library(arguments.library, arguments.check_vlen);
  if (arguments.max_new == 0) {
    arguments.max_new = DefaultMaxNew(library, arguments, tokenizer ? kMostText : kMostIds);
  }
  const Limits limits = LimitsOf(library, arguments);
  const std::vector<WantedParam> wanted = WantedParams(library.metadata());
  const auto params = LoadParams(arguments.params, wanted);
  library.ArrangeWeights(params);
  const int64_t vocabulary = Vocabulary(arguments, VocabularySize(wanted, params));
  // A model may have more rows than tokens, to round their number; fewer is a mistake.
  if (tokenizer && static_cast<int64_t>(tokenizer->size()) > vocabulary) {
    throw InputError("the tokenizer has " + std::to_string(tokenizer->size()) +
                     " tokens, the model " + std::to_string(vocabulary) +
                     ": it is another model's");
  }
  CheckTokens(arguments.tokens, vocabulary);
  LogitsFile logits(arguments.logits);
  Model model(library, params, limits.max_seq, limits.chunk, arguments.region);
  const Answer answer = Generate(
      &model, arguments, limits, [&](const std::vector<float>& row) { logits.Add(row); },
      [&](int32_t token) {
        if (speaker) speaker->Next(token);
      });
  if (speaker) speaker->Finish();
  logits.Close();
  if (!speaker || arguments.json) {
    Report(arguments, answer, speaker ? std::optional(speaker->text()) : std::nullopt, std::cout);
  }
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
