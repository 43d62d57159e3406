// SPDX-License-Identifier: Apache-2.0
// Compiles grammars of answers, by XGrammar.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/schema.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace rvv_runner {

// A tool that an answer may call.
struct Tool {
  std::string name;
  OrderedJson parameters;  // a schema
  std::string where;       // its path in the request
  bool strict = false;     // refuse a schema that a grammar cannot express
};

// Compiles grammars for the vocabulary of a model, and keeps those that were used last. Threads may
// share it. The table of the vocabulary is made for the first grammar.
class GrammarCompiler {
 public:
  // `vocabulary`: size of the model's, which may be larger than the tokenizer's. `tokenizer` must
  // outlive the compiler.
  GrammarCompiler(const Tokenizer& tokenizer, int64_t vocabulary);
  ~GrammarCompiler();

  // The grammar of JSON texts that are valid for a schema. `where` is the path of the schema in the
  // request. Throws GrammarError when it cannot be expressed. With `unguided`, keywords that Validator
  // checks may be left out; their paths, or that of the schema, are added there.
  std::shared_ptr<const Grammar> OfSchema(const OrderedJson& schema, const std::string& where,
                                          std::vector<std::string>* unguided);

  // An answer instead of calls.
  struct Otherwise {
    bool any_text = false;                // the grammar begins where calls begin
    const OrderedJson* schema = nullptr;  // else JSON that is valid for it; null: none
    std::string where = {};               // its path in the request
    bool strict = false;                  // refuse a schema that a grammar cannot express
    Thoughts thoughts = Thoughts::kNone;  // before any text; they hold no calls
  };

  // The grammar of calls of these tools, in the model's format, at most `most` of them, or of another
  // answer. Throws GrammarError as OfSchema does, and ToolsError. `unguided`: of what is not strict.
  std::shared_ptr<const Grammar> OfCalls(const std::vector<Tool>& tools, int64_t most,
                                         const Otherwise& otherwise,
                                         std::vector<std::string>* unguided);

 private:
  class Vocabulary;
  class Compiled;
  class Matcher;

  const std::shared_ptr<Vocabulary>& Ready();

  const Tokenizer& tokenizer_;
  int64_t vocabulary_;
  std::once_flag once_;
  std::shared_ptr<Vocabulary> table_;
};

}  // namespace rvv_runner
