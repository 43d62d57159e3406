// SPDX-License-Identifier: Apache-2.0
// Replaces a header that the TVM wheel lacks: the functions that the runtime uses.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>

namespace tvm {
namespace support {

// Returns true if the text is a decimal number without a sign.
inline bool IsNumber(const std::string& text) {
  const auto digit = [](unsigned char c) { return std::isdigit(c) != 0; };
  return !text.empty() && std::all_of(text.begin(), text.end(), digit);
}

}  // namespace support
}  // namespace tvm
