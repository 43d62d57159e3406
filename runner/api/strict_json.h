// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "input/json.h"

namespace rvv_runner {

// Reads a request's body. Throws ApiError (400) for what ParseJson refuses, is nested more than 32
// deep, or names a field twice.
Json ParseBody(std::string_view body);

}  // namespace rvv_runner
