// SPDX-License-Identifier: Apache-2.0
// Checks answers against the schemas of a request, by a library that knows nothing of grammars.
#pragma once

#include <memory>
#include <string>

#include "input/json.h"

namespace rvv_runner {

// A JSON Schema. Threads may share it. Patterns of strings and of names are not checked: the regular
// expressions of C++ recurse for each character, and an answer could be long enough to end the program.
class Validator {
 public:
  // `where`: path of the schema in the request. Throws GrammarError if it is no schema.
  Validator(OrderedJson schema, const std::string& where);
  ~Validator();

  // The reason why a text is not valid; empty for a text that is.
  std::string Fault(const std::string& text) const;

 private:
  class Compiled;
  std::unique_ptr<const Compiled> compiled_;
};

}  // namespace rvv_runner
