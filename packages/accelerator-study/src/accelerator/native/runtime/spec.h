// SPDX-License-Identifier: Apache-2.0
// Sizes of a device or matrix unit that multiplies blocks of int8.
#ifndef MLC_RVV_ACCELERATORS_RUNTIME_SPEC_H_
#define MLC_RVV_ACCELERATORS_RUNTIME_SPEC_H_

#include <cstdint>

extern "C" {

// The block of a product, and the depths of a device's buffers in elements (powers of two); a CPU's
// matrix unit has no buffers.
struct AcceleratorSpec {
  std::uint32_t batch, inputs, outputs;
  std::uint32_t micro_ops, weights, values, sums;
};
}

#endif  // MLC_RVV_ACCELERATORS_RUNTIME_SPEC_H_
