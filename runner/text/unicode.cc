// SPDX-License-Identifier: Apache-2.0
#include "text/unicode.h"

#include <algorithm>
#include <cstddef>

#include "text/unicode_tables.h"

namespace rvv_runner {
namespace {

template <size_t N>
bool Within(const CodeRange (&ranges)[N], uint32_t code) {
  const auto* found = std::ranges::lower_bound(ranges, code, {}, &CodeRange::last);
  return found != ranges + N && found->first <= code;
}

}  // namespace

bool IsLetter(uint32_t code) { return Within(kLetters, code); }
bool IsCapital(uint32_t code) { return Within(kCapitals, code); }
bool IsSmall(uint32_t code) { return Within(kSmalls, code); }
bool IsCased(uint32_t code) { return Within(kCased, code); }
bool IsMark(uint32_t code) { return Within(kMarks, code); }
bool IsNumber(uint32_t code) { return Within(kNumbers, code); }
bool IsDigit(uint32_t code) { return Within(kDigits, code); }
bool IsPunctuation(uint32_t code) { return Within(kPunctuation, code); }
bool IsSymbol(uint32_t code) { return Within(kSymbols, code); }
bool IsSpace(uint32_t code) { return Within(kSpaces, code); }

size_t ColumnsOf(uint32_t code) {
  return Within(kZeroWidth, code) ? 0 : Within(kWide, code) ? 2 : 1;
}

}  // namespace rvv_runner
