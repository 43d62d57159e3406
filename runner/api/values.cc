// SPDX-License-Identifier: Apache-2.0
#include "api/values.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "api/api_error.h"

namespace rvv_runner {

void Refuse(const std::string& field, const std::string& why) {
  throw ApiError(400, field + ": " + why, field);
}

void CheckCount(const std::string& field, size_t count, size_t most, const std::string& what) {
  if (count <= most) return;
  Refuse(field,
         "has " + std::to_string(count) + " " + what + "; send at most " + std::to_string(most));
}

bool ReadBoolean(const std::string& field, const Json& value) {
  if (!value.is_boolean()) Refuse(field, "must be true or false");
  return value.get<bool>();
}

int64_t ReadInteger(const std::string& field, const Json& value, int64_t low, int64_t high) {
  // Some clients write 5.0 where 5 is meant.
  const bool whole =
      value.is_number_float() && std::floor(value.get<double>()) == value.get<double>();
  if (!value.is_number_integer() && !whole) Refuse(field, "must be a whole number");
  const double real = value.get<double>();
  if (real < static_cast<double>(low) || real > static_cast<double>(high)) {
    Refuse(field,
           Written(value) + " is outside " + std::to_string(low) + " to " + std::to_string(high));
  }
  return whole ? static_cast<int64_t>(real) : value.get<int64_t>();
}

double ReadReal(const std::string& field, const Json& value) {
  if (!value.is_number()) Refuse(field, "must be a number");
  return value.get<double>();
}

const std::string& ReadText(const std::string& field, const Json& value) {
  if (!value.is_string()) Refuse(field, "must be a string");
  return value.get_ref<const std::string&>();
}

std::vector<int32_t> ReadIds(const std::string& field, const Json& value) {
  if (!value.is_array()) Refuse(field, "must be a list of token ids");
  std::vector<int32_t> ids;
  for (size_t i = 0; i < value.size(); ++i) {
    const int64_t most = std::numeric_limits<int32_t>::max();
    ids.push_back(static_cast<int32_t>(ReadInteger(EntryOf(field, i), value[i], 0, most)));
  }
  return ids;
}

void CheckNames(const std::string& field, const Json& value,
                const std::vector<std::string>& known) {
  if (!value.is_object()) Refuse(field, "must be an object");
  for (const auto& [name, entry] : value.items()) {
    if (std::count(known.begin(), known.end(), name) == 0) {
      Refuse(field + "." + name, "is not supported here");
    }
  }
}

OrderedJson SchemaOf(const Json& value) {
  if (value.is_null()) return {{"type", "null"}};
  if (value.is_boolean()) return {{"type", "boolean"}};
  const std::string type = value.is_string() ? "string" : value.is_array() ? "array" : "integer";
  if (!value.is_array()) return {{"type", type}, {"enum", {OrderedJson(value)}}};
  if (value.empty()) return {{"type", type}, {"items", OrderedJson::object()}, {"maxItems", 0}};
  return {{"type", type}, {"items", SchemaOf(value[0])}};
}

std::string EntryOf(const std::string& field, size_t index) {
  return field + "[" + std::to_string(index) + "]";
}

}  // namespace rvv_runner
