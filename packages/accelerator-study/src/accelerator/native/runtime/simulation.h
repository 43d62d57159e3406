// SPDX-License-Identifier: Apache-2.0
// Sizes of a device or matrix unit that multiplies blocks of int8, and the counts of a run.
#ifndef MLC_RVV_ACCELERATORS_RUNTIME_SIMULATION_H_
#define MLC_RVV_ACCELERATORS_RUNTIME_SIMULATION_H_

#include <cstdint>

extern "C" {

// The block of a product, and the depths of a device's buffers in elements (powers of two); a CPU's
// matrix unit has no buffers.
struct AcceleratorSpec {
  std::uint32_t batch, inputs, outputs;
  std::uint32_t micro_ops, weights, values, sums;
};

// The executed instructions, the steps of the GEMM core (of a matrix unit: its products) and of the
// ALU, and the bytes of memory that were read and written.
struct AcceleratorCounts {
  std::uint64_t instructions, gemm_steps, reset_steps, alu_steps, read_bytes, written_bytes;
};
}

#endif  // MLC_RVV_ACCELERATORS_RUNTIME_SIMULATION_H_
