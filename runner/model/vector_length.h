// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace rvv_runner {

// Width of this CPU's vector registers in bits; 0 when it has none.
int64_t VectorLength();

// Throws InputError when the library needs longer vector registers than this CPU has. Code for
// longer registers does not fail on shorter ones: it computes wrong numbers.
void CheckVectorLength(int64_t required);

}  // namespace rvv_runner
