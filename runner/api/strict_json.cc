// SPDX-License-Identifier: Apache-2.0
#include "api/strict_json.h"

#include "api/api_error.h"
#include "input/errors.h"
#include "input/utf8.h"

namespace rvv_runner {
namespace {

void DropNulls(Json* value) {
  if (!value->is_structured()) return;
  for (auto it = value->begin(); it != value->end();) {
    if (value->is_object() && it->is_null()) {
      it = value->erase(it);
    } else {
      DropNulls(&*it++);
    }
  }
}

}  // namespace

Json ParseBody(std::string_view body) {
  Json table;
  try {
    table = ParseJson(WithoutMark(body), "the body",
                      {.deepest = 32, .most_values = kMostValues, .unique_names = true});
  } catch (const InputError& error) {
    throw ApiError(400, error.what());
  }
  if (!table.is_object()) throw ApiError(400, "the body must be a JSON object");
  DropNulls(&table);
  return table;
}

namespace {

constexpr std::string_view kBlanks = " \t\r\n";

size_t EndOfString(std::string_view text, size_t at) {
  for (++at; text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return at + 1;
}

// The end of a value of valid JSON that begins at `at`.
size_t EndOfValue(std::string_view text, size_t at) {
  if (text[at] == '"') return EndOfString(text, at);
  int depth = 0;
  while (true) {
    const char c = text[at];
    if (depth == 0 && (c == ',' || c == '}' || c == ']')) return at;
    if (c == '"') {
      at = EndOfString(text, at);
      continue;
    }
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    ++at;
    if (depth == 0 && (c == '}' || c == ']')) return at;
  }
}

}  // namespace

std::string_view FieldText(std::string_view body, std::string_view name) {
  size_t at = body.find('{') + 1;
  while ((at = body.find_first_of("\"}", at)) < body.size() && body[at] == '"') {
    const size_t end = EndOfString(body, at);
    const bool found = ParseJson(body.substr(at, end - at), "a name") == name;
    const size_t value = body.find_first_not_of(kBlanks, body.find(':', end) + 1);
    at = EndOfValue(body, value);
    if (found) return body.substr(value, at - value);
  }
  return {};
}

}  // namespace rvv_runner
