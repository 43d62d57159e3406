// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "input/json.h"

namespace rvv_runner {

// Reads a request's body. Throws ApiError (400) if ParseJson refuses it, if it is nested more than
// 32 deep, or if it names a field twice.
Json ParseBody(std::string_view body);

// The text of a field of a body that ParseBody accepted as an object; empty if it is not there.
std::string_view FieldText(std::string_view body, std::string_view name);

}  // namespace rvv_runner
