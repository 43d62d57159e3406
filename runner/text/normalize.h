// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace rvv_runner {

// Converts a UTF-8 text to Unicode's normal form C (UAX 15): letters and marks are composed as far
// as possible, and marks are in canonical order.
std::string Nfc(std::string_view text);

}  // namespace rvv_runner
