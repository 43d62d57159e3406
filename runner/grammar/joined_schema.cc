// SPDX-License-Identifier: Apache-2.0
#include "grammar/joined_schema.h"

#include <algorithm>
#include <set>
#include <string>

namespace rvv_runner {
namespace {

using Names = std::set<std::string_view>;

const Names kOfObjects = {"properties",        "required",      "additionalProperties",
                          "patternProperties", "propertyNames", "unevaluatedProperties",
                          "minProperties",     "maxProperties"};
const Names kOfArrays = {"items", "prefixItems", "unevaluatedItems", "minItems", "maxItems"};
const Names kOfNumbers = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                          "multipleOf"};
const Names kOfStrings = {"pattern", "minLength", "maxLength", "format"};
const Names kLeast = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"};
const Names kMost = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"};
// Keywords that say what the properties, or items, that other keywords beside them do not name are.
const Names kOfOtherProperties = {"additionalProperties", "unevaluatedProperties",
                                  "patternProperties", "propertyNames"};
const Names kOfOtherItems = {"items", "unevaluatedItems"};

OrderedJson Listed(const OrderedJson& types) {
  return types.is_array() ? types : OrderedJson::array({types});
}

// True if a keyword of `schema` speaks of properties or items that `other` alone names.
bool SpeaksOf(const OrderedJson& schema, const OrderedJson& other) {
  const auto has = [&](std::string_view name) { return schema.contains(name); };
  if (other.contains("prefixItems") &&
      schema.value("prefixItems", OrderedJson()) != other["prefixItems"] &&
      std::any_of(kOfOtherItems.begin(), kOfOtherItems.end(), has)) {
    return true;
  }
  if (!other.contains("properties") || !other["properties"].is_object() ||
      std::none_of(kOfOtherProperties.begin(), kOfOtherProperties.end(), has)) {
    return false;
  }
  const OrderedJson own = schema.value("properties", OrderedJson::object());
  const auto names = other["properties"].items();
  return !std::all_of(names.begin(), names.end(),
                      [&](const auto& property) { return own.contains(property.key()); });
}

bool JoinTypes(const OrderedJson& more, OrderedJson* types) {
  const OrderedJson others = Listed(more);
  OrderedJson both = OrderedJson::array();
  for (const OrderedJson& type : Listed(*types)) {
    if (std::count(others.begin(), others.end(), type) > 0) both.push_back(type);
  }
  *types = both.size() == 1 ? both[0] : both;
  return !both.empty();
}

void JoinNames(const OrderedJson& more, OrderedJson* names) {
  for (const OrderedJson& name : more) {
    if (std::count(names->begin(), names->end(), name) == 0) names->push_back(name);
  }
}

bool JoinProperties(const OrderedJson& more, OrderedJson* properties) {
  for (const auto& [name, schema] : more.items()) {
    if (!properties->contains(name)) {
      (*properties)[name] = schema;
    } else if (!Join(schema, &(*properties)[name])) {
      return false;
    }
  }
  return true;
}

bool JoinValues(const std::string& keyword, const OrderedJson& more, OrderedJson* value) {
  if (*value == more) return true;
  if (kLeast.contains(keyword) || kMost.contains(keyword)) {
    if (!value->is_number() || !more.is_number()) return false;
    if (kLeast.contains(keyword) ? *value < more : more < *value) *value = more;
    return true;
  }
  if (keyword == "type") return JoinTypes(more, value);
  if (keyword == "required" && value->is_array() && more.is_array()) {
    JoinNames(more, value);
    return true;
  }
  return keyword == "properties" && value->is_object() && more.is_object() &&
         JoinProperties(more, value);
}

}  // namespace

bool Bounds(std::string_view keyword) {
  return keyword == "type" || kOfObjects.contains(keyword) || kOfArrays.contains(keyword) ||
         kOfNumbers.contains(keyword) || kOfStrings.contains(keyword);
}

bool Join(const OrderedJson& more, OrderedJson* schema) {
  if (more == *schema || more == true) return true;
  if (*schema == true) *schema = OrderedJson::object();
  if (!more.is_object() || !schema->is_object()) return false;
  if (SpeaksOf(more, *schema) || SpeaksOf(*schema, more)) return false;
  static const Names kAnnotations = {"title",   "description", "default",
                                     "example", "examples",    "$comment"};
  for (const auto& [keyword, value] : more.items()) {
    if (!schema->contains(keyword)) {
      (*schema)[keyword] = value;
    } else if (!kAnnotations.contains(keyword) &&
               !JoinValues(keyword, value, &(*schema)[keyword])) {
      return false;
    }
  }
  return true;
}

}  // namespace rvv_runner
