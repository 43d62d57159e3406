// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace rvv_runner {

using Json = nlohmann::json;

// Reads JSON. Not by tvm::ffi::json, as fuzzing decided (tests/fuzz/test_json.py): nested deeply,
// a text ends TVM's reader by a signal, and it takes NaN, 01, +3 and 1. for numbers. A file that
// comes with a model must not be able to do either. `each` may look at what is read. Throws
// InputError that names `what`: no UTF-8, nested deeper than `deepest` (counted before anything is
// parsed), or no JSON.
Json ParseJson(std::string_view text, const std::string& what, int deepest = 64,
               const Json::parser_callback_t& each = nullptr);

// The value as one kind; throws InputError that starts with `where` when it is another.
const Json& TableOf(const Json& value, const std::string& where);
const Json& ListOf(const Json& value, const std::string& where);
const std::string& TextOf(const Json& value, const std::string& where);
int64_t IntegerOf(const Json& value, const std::string& where);

// A whole number that the type holds, or nothing.
std::optional<int64_t> WholeNumber(const Json& value);

// A field of a table; throws InputError when it is no table or lacks the field.
const Json& Field(const Json& table, const std::string& name, const std::string& where);
// The same, or null when the field is not there.
const Json* Find(const Json& table, const std::string& name);

// JSON as text; bytes that are no UTF-8 become U+FFFD.
std::string Written(const Json& value);

}  // namespace rvv_runner
