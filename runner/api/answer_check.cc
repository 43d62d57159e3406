// SPDX-License-Identifier: Apache-2.0
#include "api/answer_check.h"

namespace rvv_runner {

AnswerCheck::AnswerCheck(const Form& form, const ToolFormat* format, Thoughts thoughts,
                         size_t answers)
    : must_call_(form.must_call) {
  if (form.schema && !form.must_call) {
    whole_ = std::make_unique<Validator>(*form.schema, form.schema_field);
  }
  for (const Tool& tool : form.tools) of_tools_.try_emplace(tool.name, tool.parameters, tool.where);
  const Answer none{{of_tools_.empty() ? nullptr : format, thoughts}, {}, {}};
  answers_.assign(answers, none);
}

void AnswerCheck::Next(size_t answer, std::string_view text) {
  Answer& one = answers_[answer];
  Collect(one.parts.Next(text), &one);
}

void AnswerCheck::Collect(const std::vector<AnswerPart>& parts, Answer* answer) const {
  for (const AnswerPart& part : parts) {
    if (part.kind == AnswerPart::Kind::kText) answer->text += part.text;
    if (part.kind == AnswerPart::Kind::kCall) answer->calls.push_back({part.text, ""});
    if (part.kind == AnswerPart::Kind::kArguments) answer->calls.back().arguments += part.text;
  }
}

std::string AnswerCheck::Fault(size_t answer) {
  Answer& one = answers_[answer];
  Collect(one.parts.Finish(), &one);
  if (whole_ && one.calls.empty()) return whole_->Fault(one.text);
  if (must_call_ && one.calls.empty()) return "it calls no tool";
  for (const Call& call : one.calls) {
    const auto tool = of_tools_.find(call.name);
    if (tool == of_tools_.end()) return "it calls a tool that is not in tools";
    const std::string fault = tool->second.Fault(call.arguments);
    if (!fault.empty()) return "the arguments of " + call.name + ": " + fault;
  }
  return {};
}

}  // namespace rvv_runner
