// SPDX-License-Identifier: Apache-2.0
// Typed values of fields. `field` is the path of the value in the request; each function throws
// ApiError (400) that names it if the value has another type.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "input/json.h"

namespace rvv_runner {

// Throws ApiError (400): "field: why". All errors of requests have this form.
[[noreturn]] void Refuse(const std::string& field, const std::string& why);
// Refuses more than `most` things. `what`: their name.
void CheckCount(const std::string& field, size_t count, size_t most, const std::string& what);

bool ReadBoolean(const std::string& field, const Json& value);
int64_t ReadInteger(const std::string& field, const Json& value, int64_t low, int64_t high);
double ReadReal(const std::string& field, const Json& value);
const std::string& ReadText(const std::string& field, const Json& value);
// A list of token ids.
std::vector<int32_t> ReadIds(const std::string& field, const Json& value);

// Refuses names of a table that are not among `known`, and values that are not tables.
void CheckNames(const std::string& field, const Json& value, const std::vector<std::string>& known);

// A JSON Schema of one value that generators of clients read: they do not know every constant.
OrderedJson SchemaOf(const Json& value);

// The path of an entry of a list.
std::string EntryOf(const std::string& field, size_t index);

}  // namespace rvv_runner
