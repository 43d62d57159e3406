// SPDX-License-Identifier: Apache-2.0
// Grammars of answers, by XGrammar: which tokens may come next.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "grammar/schema.h"
#include "text/tokenizer.h"

namespace rvv_runner {

// The grammar of an answer, compiled for a vocabulary. Threads may share it.
class Grammar;

// A tool that an answer may call.
struct Tool {
  std::string name;
  OrderedJson parameters;  // a schema
  std::string where;       // its path in the request
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
  // request. Throws GrammarError when it cannot be expressed.
  std::shared_ptr<const Grammar> OfSchema(const OrderedJson& schema, const std::string& where);

  // The grammar of calls of these tools, in the model's format, at most `most` of them. With
  // `text`, an answer may also be any text; the grammar begins where calls begin. Throws
  // GrammarError as OfSchema does, and ToolsError.
  std::shared_ptr<const Grammar> OfCalls(const std::vector<Tool>& tools, int64_t most, bool text);

 private:
  friend class Grammar;
  friend class GrammarState;
  class Vocabulary;

  const std::shared_ptr<Vocabulary>& Ready();

  const Tokenizer& tokenizer_;
  int64_t vocabulary_;
  std::once_flag once_;
  std::shared_ptr<Vocabulary> table_;
};

// The grammar of one answer that is being written.
class GrammarState {
 public:
  explicit GrammarState(std::shared_ptr<const Grammar> grammar);
  ~GrammarState();
  GrammarState(GrammarState&&) noexcept;

  // True if some token may come next.
  bool Begins();
  // Sets the logits of all tokens that the grammar forbids to minus infinity. Throws RunError if no
  // token is left.
  void Mask(std::vector<float>* logits);
  // Notes the next token of the answer.
  void Accept(int32_t token);
  // True if the answer is complete.
  bool done() const;

 private:
  class Matcher;

  std::unique_ptr<Matcher> matcher_;
};

}  // namespace rvv_runner
