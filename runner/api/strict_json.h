// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace rvv_runner {

// Reads a request's body. Throws ApiError (400) for what is no UTF-8, is nested more than 32 deep
// (counted before anything is parsed), is no JSON, or names a field twice.
nlohmann::json ParseBody(std::string_view body);

// JSON as text; bytes that are no UTF-8 become U+FFFD.
std::string Written(const nlohmann::json& value);

}  // namespace rvv_runner
