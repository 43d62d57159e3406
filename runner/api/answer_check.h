// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/tools.h"
#include "grammar/validator.h"
#include "text/answer_parts.h"

namespace rvv_runner {

// Checks whole answers against the schemas that they have to match, after a grammar has written them.
class AnswerCheck {
 public:
  // `format`: of calls; null if the model has none. It must outlive this object. Throws GrammarError
  // if a schema of the form is none.
  AnswerCheck(const Form& form, const ToolFormat* format, Thoughts thoughts, size_t answers);

  // Reads a piece of the text of an answer.
  void Next(size_t answer, std::string_view text);
  // The reason why an answer does not match, after its last piece; empty for one that does.
  std::string Fault(size_t answer);

 private:
  struct Call {
    std::string name;
    std::string arguments;
  };
  struct Answer {
    AnswerParts parts;
    std::string text;
    std::vector<Call> calls;
  };

  void Collect(const std::vector<AnswerPart>& parts, Answer* answer) const;

  std::unique_ptr<Validator> whole_;  // of an answer that calls nothing; null: any text
  std::map<std::string, Validator, std::less<>> of_tools_;
  bool must_call_;
  std::vector<Answer> answers_;
};

}  // namespace rvv_runner
