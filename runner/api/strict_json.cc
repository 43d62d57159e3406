// SPDX-License-Identifier: Apache-2.0
#include "api/strict_json.h"

#include "api/api_error.h"
#include "input/errors.h"

namespace rvv_runner {

Json ParseBody(std::string_view body) {
  try {
    return ParseJson(body, "the body",
                     {.deepest = 32, .most_values = kMostValues, .unique_names = true});
  } catch (const InputError& error) {
    throw ApiError(400, error.what());
  }
}

}  // namespace rvv_runner
