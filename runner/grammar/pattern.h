// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rvv_runner {

// A regular expression of a JSON Schema, as XGrammar gets it.
struct Pattern {
  std::string text;   // ASCII: other characters are escaped
  std::string wrong;  // why it cannot be expressed; empty if it can
  int64_t size = 0;   // characters of the longest match without * and +, alternatives added up
};

// Reads a regular expression. XGrammar leaves out of each match the characters that JSON escapes:
// quotes, backslashes, control characters. Where that leaves nothing, it writes them unescaped; so
// a pattern that names one of them, other than to exclude it, cannot be expressed.
Pattern ReadPattern(std::string_view text);

}  // namespace rvv_runner
