// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace rvv_runner {

// Classes of code points that tokenizers cut text by. The tables are generated at build time from
// the library that a model's tokenizer was made with.
bool IsLetter(uint32_t code);       // general category L
bool IsCapital(uint32_t code);      // Lu and Lt
bool IsSmall(uint32_t code);        // Ll
bool IsCased(uint32_t code);        // letters with case, as DeepSeek's rule of words lists them
bool IsMark(uint32_t code);         // M
bool IsNumber(uint32_t code);       // general category N
bool IsDigit(uint32_t code);        // N too, as the step that puts digits apart knows it
bool IsPunctuation(uint32_t code);  // general category P
bool IsSymbol(uint32_t code);       // general category S
bool IsSpace(uint32_t code);        // White_Space

// Columns of a character in a terminal.
size_t ColumnsOf(uint32_t code);

}  // namespace rvv_runner
