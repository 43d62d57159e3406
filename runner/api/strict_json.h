// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "input/json.h"

namespace rvv_runner {

// Reads a request's body. Throws ApiError (400) if ParseJson refuses it, if it is nested more than
// 32 deep, or if it names a field twice.
Json ParseBody(std::string_view body);

}  // namespace rvv_runner
