// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "input/errors.h"
#include "input/json.h"

namespace rvv_runner {

// A schema or another description of an answer that cannot be used, and the field at fault.
class GrammarError : public InputError {
 public:
  GrammarError(std::string field, const std::string& why)
      : InputError(field + ": " + why), field_(std::move(field)) {}
  const std::string& field() const { return field_; }

 private:
  std::string field_;
};

// The model's chat template has no form of calls.
class ToolsError : public GrammarError {
 public:
  using GrammarError::GrammarError;
};

// Checks a JSON Schema, whose order of properties is that of an answer, and writes it so that
// XGrammar reads all of it. XGrammar ignores many keywords, also beside others that it knows; each
// answer to the schema that is returned is valid for the given one. Throws GrammarError with the
// path of a keyword that it cannot express. `where` is the path of the schema itself; `type` is the
// only type of its values, which it need not name, or empty. With `unguided`, a keyword that a grammar
// cannot express and Validator checks is left out, and its path is added there.
OrderedJson PreparedSchema(OrderedJson schema, const std::string& where,
                           const std::string& type = "",
                           std::vector<std::string>* unguided = nullptr);

}  // namespace rvv_runner
