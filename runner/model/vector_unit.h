// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace rvv_runner {

// Width of this CPU's vector registers in bits; 0 when it has none.
int64_t VectorLength();

// Throws InputError when the library needs longer vector registers than this CPU has, or vectors of
// halves (Zvfh) and it has none. Code for longer registers does not fail on shorter ones: it
// computes wrong numbers.
void CheckVectorUnit(int64_t bits, bool halves);

}  // namespace rvv_runner
