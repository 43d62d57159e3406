// SPDX-License-Identifier: Apache-2.0
// What an answer has to match: a schema, or calls of tools. Schemas are read with their properties
// in the order of the text.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "api/fields.h"
#include "grammar/compiler.h"
#include "input/json.h"

namespace rvv_runner {

constexpr size_t kMostTools = 128;
constexpr int64_t kMostCalls = 16;  // of one answer

// What an answer has to match.
struct Form {
  std::optional<OrderedJson> schema;
  std::string schema_field;  // its path in the request
  bool strict = false;       // refuse a schema that a grammar cannot express
  std::vector<Tool> tools;   // that the answer may call
  bool must_call = false;    // and has to
  bool parallel = true;      // it may call several
};

// A field with the order of its names.
OrderedJson InOrder(const FieldValue& at);
// The tool that a function at the path `place` describes.
Tool ToolOf(const std::string& place, const OrderedJson& function);

// Reads response_format.
void ReadFormat(const FieldValue& at, Form* form);
// Reads tools, and returns them as chat templates read them.
OrderedJson ReadTools(const FieldValue& at, Form* form);
// Reads tool_choice, after the tools.
void ReadChoice(const FieldValue& at, Form* form);

}  // namespace rvv_runner
