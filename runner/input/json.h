// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace rvv_runner {

using Json = nlohmann::json;
// JSON that keeps the order of fields.
using OrderedJson = nlohmann::ordered_json;

struct JsonBounds {
  int deepest = 64;               // lists and tables inside each other, counted before parsing
  size_t most_values = SIZE_MAX;  // numbers, texts, lists, tables and names
  bool unique_names = false;      // refuses a name that a table has twice; else the last counts
};

// Reads JSON. tvm::ffi::json is not used because it crashes on deeply nested texts and accepts NaN,
// 01, +3 and 1. as numbers (found by tests/fuzz/test_json.py); a file of a model must not be able
// to do that. The time grows with the length of the text. Throws InputError that names `what` if
// the text is not UTF-8, is not JSON, or exceeds the bounds.
Json ParseJson(std::string_view text, const std::string& what, const JsonBounds& bounds = {});
// The same with the fields in their order.
OrderedJson ParseOrderedJson(std::string_view text, const std::string& what,
                             const JsonBounds& bounds = {});

// The value as one type. Throws InputError that starts with `where` if it has another type.
const Json& TableOf(const Json& value, const std::string& where);
const Json& ListOf(const Json& value, const std::string& where);
const std::string& TextOf(const Json& value, const std::string& where);
int64_t IntegerOf(const Json& value, const std::string& where);
double RealOf(const Json& value, const std::string& where);

// The value if it is a whole number that fits the type, else nullopt.
std::optional<int64_t> WholeNumber(const Json& value);

// A field of a table. Throws InputError if it is not a table or lacks the field.
const Json& Field(const Json& table, const std::string& name, const std::string& where);
// The same, or null when the field is not there.
const Json* Find(const Json& table, const std::string& name);

// Writes JSON as text: in one line, or with so many blanks before the inner values. Bytes that are not
// UTF-8 become U+FFFD. Only json.cc compiles the library's parser and writer, which takes seconds.
std::string Written(const Json& value, int indent = -1);
std::string WrittenInOrder(const OrderedJson& value, int indent = -1);

}  // namespace rvv_runner
