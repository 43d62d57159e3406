// SPDX-License-Identifier: Apache-2.0
// Functional simulator of an accelerator with VTA's instruction set: every byte, no time.
#ifndef MLC_RVV_ACCELERATORS_VTA_FUNCTIONAL_H_
#define MLC_RVV_ACCELERATORS_VTA_FUNCTIONAL_H_

#include <cstddef>
#include <cstdint>

#include "runtime/spec.h"

extern "C" {

// Bytes moved by buffer, steps of the GEMM core and of the ALU.
struct AcceleratorCounts {
  std::uint64_t micro_op_bytes, weight_bytes, input_bytes, sum_bytes, output_bytes;
  std::uint64_t gemm_steps, reset_steps, alu_steps;
};

// A device with buffers of zeros; null where the memory for them cannot be had.
void* accelerator_create(const AcceleratorSpec* spec);
void accelerator_destroy(void* device);

// Runs `count` instructions on `dram`. `order` (0 to 5) says which queue goes first where several
// could: a stream without races gives the same bytes in each. Returns 0, or 1 with a message.
// Encodings are looked at before anything runs; an address, only when its instruction does.
int accelerator_run(void* device, std::uint8_t* dram, std::uint64_t dram_bytes,
                    const std::uint8_t* stream, std::uint64_t count, std::uint32_t order,
                    AcceleratorCounts* counts, char* message, std::size_t message_bytes);
}

#endif  // MLC_RVV_ACCELERATORS_VTA_FUNCTIONAL_H_
