// SPDX-License-Identifier: Apache-2.0
// Functional simulator of an accelerator with VTA's instruction set: exact bytes, no times.
#ifndef MLC_RVV_ACCELERATORS_VTA_FUNCTIONAL_H_
#define MLC_RVV_ACCELERATORS_VTA_FUNCTIONAL_H_

#include <cstddef>
#include <cstdint>

#include "runtime/simulation.h"

extern "C" {

// Returns a device with buffers of zeros, or null if their memory cannot be allocated.
void* accelerator_create(const AcceleratorSpec* spec);
void accelerator_destroy(void* device);

// Runs `count` instructions on `dram`, and adds to `counts`. `order` (0 to 5) is the order in which
// queues are polled; a stream without races gives the same bytes in every order. Returns 0, or 1
// with a message. The function checks all encodings before the run, and an address when its
// instruction runs.
int accelerator_run(void* device, std::uint8_t* dram, std::uint64_t dram_bytes,
                    const std::uint8_t* stream, std::uint64_t count, std::uint32_t order,
                    AcceleratorCounts* counts, char* message, std::size_t message_bytes);
}

#endif  // MLC_RVV_ACCELERATORS_VTA_FUNCTIONAL_H_
