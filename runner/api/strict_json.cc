// SPDX-License-Identifier: Apache-2.0
#include "api/strict_json.h"

#include <set>
#include <vector>

#include "api/api_error.h"
#include "text/utf8.h"

namespace rvv_runner {
namespace {

constexpr int kDeepest = 32;

// Brackets outside of texts: at least as deep as the parser will go.
void CheckDepth(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      if (c == '\\') ++at;
      if (c == '"') quoted = false;
      continue;
    }
    if (c == '"') quoted = true;
    if (c == '}' || c == ']') --depth;
    if ((c == '{' || c == '[') && ++depth > kDeepest) {
      throw ApiError(400, "the body is nested more than " + std::to_string(kDeepest) + " deep");
    }
  }
}

}  // namespace

nlohmann::json ParseBody(std::string_view body) {
  using Event = nlohmann::json::parse_event_t;
  if (const auto broken = FirstBroken(body)) {
    throw ApiError(400, "byte " + std::to_string(*broken) + " of the body is not UTF-8");
  }
  // The parser would skip a byte order mark, which RFC 8259 does not allow.
  if (body.starts_with("\xEF\xBB\xBF")) throw ApiError(400, "the body starts with a byte order mark");
  CheckDepth(body);
  std::vector<std::set<std::string>> names;
  const auto unique = [&](int, Event event, nlohmann::json& value) {
    if (event == Event::object_start) names.emplace_back();
    if (event == Event::object_end) names.pop_back();
    if (event == Event::key && !names.back().insert(value.get<std::string>()).second) {
      throw ApiError(400, "the field '" + value.get<std::string>() + "' is there twice");
    }
    return true;
  };
  try {
    return nlohmann::json::parse(body.begin(), body.end(), unique);
  } catch (const nlohmann::json::exception& error) {
    throw ApiError(400, std::string("the body is not JSON: ") + error.what());
  }
}

std::string Written(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace rvv_runner
