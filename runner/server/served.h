// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "engine/sampling.h"
#include "grammar/compiler.h"
#include "picture/preparation.h"
#include "server/accepted.h"
#include "server/answering.h"
#include "text/tokenizer.h"

namespace rvv_runner {

// A served model: its tokenizer and its answerer.
struct Served {
  std::string name;  // of the model, as in requests
  const Tokenizer* tokenizer = nullptr;
  Answerer* answerer = nullptr;
  GrammarCompiler* grammars = nullptr;
  Sampling defaults;
  int64_t context = 0;                    // tokens of one sequence
  const Accepted* aliases = nullptr;      // other names of the model
  bool strict = false;                    // refuse unknown fields
  int64_t bytes = 0;                      // of the model's parameters
  std::string digest = {};                // of their index, hexadecimal; may be empty
  bool encodes = false;                   // it gives vectors of texts alone
  const Preparation* pictures = nullptr;  // how it reads pictures; null: not at all
  size_t queue = SIZE_MAX;                // most requests that wait in the answerer

  // Throws ApiError (404) if a request asks for another model.
  void CheckModel(const std::string& asked) const;
  // Throws ApiError (400) if the model answers nothing, or its queue has no room for so many answers.
  void CheckAnswers(size_t answers) const;
  // Throws ApiError (400) for unknown fields if they are refused.
  void CheckIgnored(const std::vector<std::string>& ignored) const;
};

}  // namespace rvv_runner
