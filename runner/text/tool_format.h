// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "input/json.h"

namespace rvv_runner {

// How a model writes calls of tools; packages/crosslab/src/crosslab/tokenizer/tool_format.py reads it from the
// model's chat template. An answer is `begin call between call end`, and a call is `open NAME
// middle ARGUMENTS close`, then an id of letters and `after_id` if `id_length` is above 0.
struct ToolFormat {
  std::string begin;  // may be empty
  std::string open;
  std::string middle;
  std::string close;  // may be empty
  int64_t id_length = 0;
  std::string after_id;
  std::string between;
  std::string end;        // may be empty
  bool parallel = false;  // an answer may hold several calls

  // The text that begins calls in an answer.
  const std::string& trigger() const { return begin.empty() ? open : begin; }
};

// Throws Json::exception if a field is missing.
ToolFormat ReadToolFormat(const Json& about);

}  // namespace rvv_runner
