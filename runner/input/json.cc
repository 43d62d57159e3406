// SPDX-License-Identifier: Apache-2.0
#include "input/json.h"

#include <limits>

#include "input/errors.h"
#include "input/utf8.h"

namespace rvv_runner {
namespace {

// Counts brackets outside strings, which is at least the depth that the parser reaches.
bool DeeperThan(int deepest, std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      if (c == '\\') ++at;
      if (c == '"') quoted = false;
      continue;
    }
    if (c == '"') quoted = true;
    if (c == '}' || c == ']') --depth;
    if ((c == '{' || c == '[') && ++depth > deepest) return true;
  }
  return false;
}

const Json& Wanted(bool found, const Json& value, const std::string& where, const char* kind) {
  if (!found) throw InputError(where + ": " + kind + " was expected");
  return value;
}

}  // namespace

Json ParseJson(std::string_view text, const std::string& what, int deepest,
               const Json::parser_callback_t& each) {
  if (const auto broken = FirstBroken(text)) {
    throw InputError("byte " + std::to_string(*broken) + " of " + what + " is not UTF-8");
  }
  // The parser would skip a byte order mark, which RFC 8259 does not allow.
  if (text.starts_with("\xEF\xBB\xBF")) throw InputError(what + " starts with a byte order mark");
  if (DeeperThan(deepest, text)) {
    throw InputError(what + " is nested more than " + std::to_string(deepest) + " deep");
  }
  try {
    return Json::parse(text.begin(), text.end(), each);
  } catch (const Json::exception& error) {
    throw InputError(what + " is not JSON: " + error.what());
  }
}

const Json& TableOf(const Json& value, const std::string& where) {
  return Wanted(value.is_object(), value, where, "a table");
}

const Json& ListOf(const Json& value, const std::string& where) {
  return Wanted(value.is_array(), value, where, "a list");
}

const std::string& TextOf(const Json& value, const std::string& where) {
  return Wanted(value.is_string(), value, where, "a text").get_ref<const std::string&>();
}

int64_t IntegerOf(const Json& value, const std::string& where) {
  return Wanted(WholeNumber(value).has_value(), value, where, "a whole number").get<int64_t>();
}

std::optional<int64_t> WholeNumber(const Json& value) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  if (!value.is_number_integer()) return {};
  if (value.is_number_unsigned() && value.get<uint64_t>() > kMost) return {};
  return value.get<int64_t>();
}

const Json& Field(const Json& table, const std::string& name, const std::string& where) {
  const auto found = TableOf(table, where).find(name);
  if (found == table.end()) throw InputError(where + ": the field '" + name + "' is missing");
  return *found;
}

const Json* Find(const Json& table, const std::string& name) {
  const auto found = table.find(name);
  return found == table.end() ? nullptr : &*found;
}

std::string Written(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace rvv_runner
