// SPDX-License-Identifier: Apache-2.0
#include "grammar/schema_parts.h"

#include <set>
#include <string_view>

namespace rvv_runner {

void VisitSchemas(OrderedJson* schema, const std::string& place,
                  const std::function<void(OrderedJson*, const std::string&)>& visit) {
  static const std::set<std::string_view> kNamed = {"properties",  "patternProperties",
                                                    "$defs",       "dependentSchemas",
                                                    "definitions", "dependencies"};
  static const std::set<std::string_view> kValues = {"const", "enum", "default", "examples"};
  const auto each = [&](OrderedJson* parts, const std::string& at) {
    for (auto& [name, part] : parts->items()) VisitSchemas(&part, at + "/" + name, visit);
  };
  if (schema->is_array()) each(schema, place);
  if (!schema->is_object()) return;
  visit(schema, place);
  if (!schema->is_object()) return;
  for (auto& [name, value] : schema->items()) {
    if (kValues.contains(name)) continue;
    const std::string at = place + "/" + name;
    if (kNamed.contains(name) && value.is_object()) {
      each(&value, at);
    } else {
      VisitSchemas(&value, at, visit);
    }
  }
}

}  // namespace rvv_runner
