// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace rvv_runner {

// Width of this CPU's vector registers in bits; 0 when it has none.
int64_t VectorLength();

// Throws InputError when this CPU's vector registers are shorter than `bits`, or when `halves` is
// true and it lacks vectors of halves (Zvfh). Code for longer registers does not fail on shorter
// ones but computes wrong numbers.
void CheckVectorUnit(int64_t bits, bool halves);

}  // namespace rvv_runner
