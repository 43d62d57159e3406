// SPDX-License-Identifier: Apache-2.0
// Grammars of answers: which tokens may come next. The engine uses these interfaces alone, so that a
// program without the server has no library of grammars in it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace rvv_runner {

// The grammar of one answer that is being written.
class GrammarState {
 public:
  virtual ~GrammarState() = default;

  // Sets the logits of all tokens that the grammar forbids to minus infinity. Throws RunError if no
  // token is left.
  virtual void Mask(std::vector<float>* logits) = 0;
  // Notes the next token of the answer.
  virtual void Accept(int32_t token) = 0;
  // True if the answer is complete.
  virtual bool done() const = 0;
};

// The grammar of answers, compiled for a vocabulary. Threads may share it.
class Grammar {
 public:
  virtual ~Grammar() = default;

  // The state at the beginning of an answer.
  virtual std::unique_ptr<GrammarState> Begin() const = 0;
};

}  // namespace rvv_runner
