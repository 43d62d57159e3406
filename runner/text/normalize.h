// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace rvv_runner {

// A text, which must be UTF-8, in Unicode's normal form C (UAX 15): letters and their marks
// composed as far as may be, marks in canonical order.
std::string Nfc(std::string_view text);

}  // namespace rvv_runner
