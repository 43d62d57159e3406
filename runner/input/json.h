// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace rvv_runner {

class Json;
using JsonList = std::vector<Json>;
using JsonTable = std::map<std::string, Json>;

// A JSON value. Parsed here, and not by tvm::ffi::json, as fuzzing decided (tests/fuzz/test_json.py):
// nested deeply, a text ends TVM's reader by a signal, and it takes NaN, 01, +3 and 1. for numbers.
// A file that comes with a model must not be able to do either.
class Json {
 public:
  using Value = std::variant<std::nullptr_t, bool, int64_t, double, std::string, JsonList, JsonTable>;

  Json() : value_(nullptr) {}
  explicit Json(Value value) : value_(std::move(value)) {}

  // Throws InputError that starts with `where`: not JSON, or nested too deeply.
  static Json Parse(const std::string& text, const std::string& where);

  // The value as one kind; throws InputError that starts with `where` when it is another.
  const JsonTable& Table(const std::string& where) const;
  const JsonList& List(const std::string& where) const;
  const std::string& Text(const std::string& where) const;
  int64_t Integer(const std::string& where) const;

  // A field of a table; throws InputError when it is no table or lacks the field.
  const Json& At(const std::string& key, const std::string& where) const;
  // The same, or null when the field is not there.
  const Json* Find(const std::string& key) const;

  const Value& value() const { return value_; }

 private:
  Value value_;
};

// The text in quotes, escaped as JSON wants it.
std::string Quoted(const std::string& text);

}  // namespace rvv_runner
