// SPDX-License-Identifier: Apache-2.0
#include "api/strict_json.h"

#include <set>
#include <string>
#include <vector>

#include "api/api_error.h"
#include "input/errors.h"

namespace rvv_runner {

Json ParseBody(std::string_view body) {
  using Event = Json::parse_event_t;
  std::vector<std::set<std::string>> names;
  const auto unique = [&](int, Event event, Json& value) {
    if (event == Event::object_start) names.emplace_back();
    if (event == Event::object_end) names.pop_back();
    if (event == Event::key && !names.back().insert(value.get<std::string>()).second) {
      throw ApiError(400, "the field '" + value.get<std::string>() + "' appears twice");
    }
    return true;
  };
  try {
    return ParseJson(body, "the body", 32, unique);
  } catch (const InputError& error) {
    throw ApiError(400, error.what());
  }
}

}  // namespace rvv_runner
