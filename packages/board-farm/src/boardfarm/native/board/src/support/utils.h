// SPDX-License-Identifier: Apache-2.0
// Replaces a header that the TVM wheel does not ship: the part that the RPC sources use.
#pragma once

#include <string>

namespace tvm {
namespace support {

inline bool StartsWith(const std::string& text, const char* prefix) {
  return text.rfind(prefix, 0) == 0;
}

}  // namespace support
}  // namespace tvm
