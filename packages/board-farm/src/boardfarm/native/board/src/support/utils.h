// SPDX-License-Identifier: Apache-2.0
// Stands in for a header that the TVM wheel does not ship: what the RPC sources use of it.
#pragma once

#include <string>

namespace tvm {
namespace support {

inline bool StartsWith(const std::string& text, const char* prefix) {
  return text.rfind(prefix, 0) == 0;
}

}  // namespace support
}  // namespace tvm
