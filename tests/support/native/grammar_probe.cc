// SPDX-License-Identifier: Apache-2.0
// Random answers to JSON Schemas: TOKENIZER SEED MOST, and a schema a line on the standard input.
// Writes a line for each: the answer, if it is complete, and its fault by the check of answers (empty
// without one), or the field that is refused. A line
// with "calls" asks for calls of tools instead: "tools" (name to schema), "most", "text" (a beginning
// of the answer, or null where it has to call), "schema" (of an answer that calls nothing, or null),
// "begun" (true: the prompt has begun a thought); the answer comes in parts.
#include <iostream>
#include <string>

#include "api/answer_check.h"
#include "engine/sampling.h"
#include "grammar/compiler.h"
#include "input/read_file.h"
#include "text/answer_parts.h"

using namespace rvv_runner;

namespace {

// Logits without a model: as much by chance as can be.
std::vector<float> AnyLogits(Random* random, size_t size) {
  std::vector<float> logits(size);
  for (float& logit : logits) logit = static_cast<float>(4.0 * random->Next());
  return logits;
}

OrderedJson Answer(const std::shared_ptr<const Grammar>& grammar, const Tokenizer& tokenizer,
                   Random* random, int most, const std::string& begin = "") {
  Sampling sampling;
  sampling.temperature = 1.0;
  sampling.seed = static_cast<uint64_t>(random->Next() * 1e9);
  Sampler sampler(sampling);
  const auto state = grammar->Begin();
  std::string text;
  for (const int32_t token : tokenizer.Encode(begin).ids) {
    state->Accept(token);
    text += tokenizer.Bytes(token);
  }
  while (!state->done() && most-- > 0) {
    auto logits = AnyLogits(random, tokenizer.size() + 3);
    state->Mask(&logits);
    const int32_t token = sampler.Next(logits);
    state->Accept(token);
    text += tokenizer.Bytes(token);
  }
  return {{"text", text}, {"done", state->done()}};
}

// The fault of an answer, which comes in pieces.
std::string FaultOf(const Form& form, const Tokenizer& tokenizer, const OrderedJson& answer,
                    Thoughts thoughts = Thoughts::kMay) {
  const auto& calls = tokenizer.calls();
  AnswerCheck check(form, calls ? &*calls : nullptr, thoughts, 1);
  const std::string text = answer["text"];
  for (size_t at = 0; at < text.size(); at += 7)
    check.Next(0, std::string_view(text).substr(at, 7));
  return answer["done"] ? check.Fault(0) : "";
}

OrderedJson Calls(GrammarCompiler* compiler, const Tokenizer& tokenizer, const OrderedJson& asked,
                  Random* random, int most) {
  std::vector<Tool> tools;
  for (const auto& [name, schema] : asked["tools"].items()) {
    tools.push_back({name, schema, "tools." + name, true});
  }
  const bool free = asked["text"].is_string();
  Form form;
  form.tools = tools;
  const bool has_schema = asked.contains("schema") && !asked["schema"].is_null();
  if (has_schema) form.schema = asked["schema"];
  form.must_call = !free && !has_schema;
  const auto thoughts = tokenizer.chat().has_channels() ? Thoughts::kChannels
                        : asked.value("begun", false)   ? Thoughts::kBegun
                                                        : Thoughts::kMay;
  GrammarCompiler::Otherwise otherwise{free, has_schema ? &asked["schema"] : nullptr, "schema",
                                       true, thoughts};
  const auto grammar = compiler->OfCalls(tools, asked["most"], otherwise, nullptr);
  const std::string begin = free ? asked["text"].get<std::string>() : "";
  OrderedJson result = Answer(grammar, tokenizer, random, most, begin);
  result["fault"] = FaultOf(form, tokenizer, result, thoughts);
  AnswerParts parts(&*tokenizer.calls(), thoughts);
  const std::string text = result["text"];
  std::vector<AnswerPart> told;
  const auto add = [&](const std::vector<AnswerPart>& more) {
    told.insert(told.end(), more.begin(), more.end());
  };
  for (size_t at = 0, next = 0; at < text.size(); at = next) {
    next = std::min(text.size(), at + 1 + static_cast<size_t>(random->Next() * 9.0));
    while (next < text.size() && (text[next] & 0xC0) == 0x80) ++next;  // whole characters
    add(parts.Next(text.substr(at, next - at)));
  }
  add(parts.Finish());
  result["parts"] = OrderedJson::array();
  for (const AnswerPart& part : told) {
    result["parts"].push_back({static_cast<int>(part.kind), part.text});
  }
  return result;
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
      const OrderedJson asked = OrderedJson::parse(line);
      const int most = std::stoi(argv[3]);
      if (asked.is_object() && asked.contains("calls")) {
        result = Calls(&compiler, tokenizer, asked, &random, most);
      } else {
        std::vector<std::string> unguided;
        result = Answer(compiler.OfSchema(asked, "schema", argv[4] ? &unguided : nullptr),
                        tokenizer, &random, most);
        result["unguided"] = unguided;
        Form form;
        form.schema = asked;
        form.schema_field = "schema";
        result["fault"] = FaultOf(form, tokenizer, result);
      }
    } catch (const GrammarError& error) {
      result = {{"field", error.field()}, {"why", error.what()}};
    }
    std::cout << result.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) << std::endl;
  }
  return 0;
}
