// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

#include "input/json.h"

namespace rvv_runner {

// A prompt may be a list of token ids, so this is more than a context's tokens.
constexpr size_t kMostValues = size_t{1} << 18;

// Reads a request's body, an object, perhaps behind a byte order mark. Throws ApiError (400) if
// ParseJson refuses it, if it is not an object, is nested more than 32 deep, has more than
// kMostValues values, or names a field twice.
// The result has no field that is null, at any depth: null is the same as no field. The text of the
// body (FieldText) has those of a schema and of the arguments of a call.
Json ParseBody(std::string_view body);

// The text of a field of a body that ParseBody accepted; empty if it is not there.
std::string_view FieldText(std::string_view body, std::string_view name);

}  // namespace rvv_runner
