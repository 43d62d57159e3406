// SPDX-License-Identifier: Apache-2.0
// Random answers to JSON Schemas: TOKENIZER SEED MOST, and a schema a line on the standard input.
// Writes a line for each: the answer and if it is complete, or the field that is refused.
#include <iostream>
#include <string>

#include "engine/sampling.h"
#include "grammar/grammar.h"
#include "input/read_file.h"

using namespace rvv_runner;

namespace {

// Logits without a model: as much by chance as can be.
std::vector<float> AnyLogits(Random* random, size_t size) {
  std::vector<float> logits(size);
  for (float& logit : logits) logit = static_cast<float>(4.0 * random->Next());
  return logits;
}

OrderedJson Answer(std::shared_ptr<const Grammar> grammar, const Tokenizer& tokenizer,
                   Random* random, int most) {
  Sampling sampling;
  sampling.temperature = 1.0;
  sampling.seed = static_cast<uint64_t>(random->Next() * 1e9);
  Sampler sampler(sampling);
  GrammarState state(std::move(grammar));
  std::string text;
  while (!state.done() && most-- > 0) {
    auto logits = AnyLogits(random, tokenizer.size() + 3);
    state.Mask(&logits);
    const int32_t token = sampler.Next(logits);
    state.Accept(token);
    text += tokenizer.Bytes(token);
  }
  return {{"text", text}, {"done", state.done()}};
}

}  // namespace

int main(int, char** argv) {
  const Tokenizer tokenizer(ParseTokenizerFile(ReadFile(argv[1]), argv[1]));
  GrammarCompiler compiler(tokenizer, static_cast<int64_t>(tokenizer.size()) + 3);
  Random random(std::stoull(argv[2]));
  std::string line;
  while (std::getline(std::cin, line)) {
    OrderedJson result;
    try {
      const auto grammar = compiler.OfSchema(OrderedJson::parse(line), "schema");
      result = Answer(grammar, tokenizer, &random, std::stoi(argv[3]));
    } catch (const GrammarError& error) {
      result = {{"field", error.field()}, {"why", error.what()}};
    }
    std::cout << result.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) << std::endl;
  }
}
