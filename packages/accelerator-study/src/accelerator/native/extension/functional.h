// SPDX-License-Identifier: Apache-2.0
// Functional simulator of a CPU with a matrix unit in its vector registers: exact bytes, no times.
#ifndef MLC_RVV_ACCELERATORS_EXTENSION_FUNCTIONAL_H_
#define MLC_RVV_ACCELERATORS_EXTENSION_FUNCTIONAL_H_

#include <cstddef>
#include <cstdint>

#include "runtime/simulation.h"

extern "C" {

// Runs a program of `count` words up to its return, at most `most` instructions, on `memory` at
// address 0, with zeroed registers of `vlen` bits (256, 1024 or 4096). The simulator refuses words
// that extension/encoding.py does not write, and addresses outside of memory, when it reaches
// them. It adds to `counts`. Returns 0, or 1 with a message.
int extension_run(std::uint32_t vlen, std::uint8_t* memory, std::uint64_t memory_bytes,
                  const std::uint8_t* words, std::uint64_t count, std::uint64_t most,
                  AcceleratorCounts* counts, char* message, std::size_t message_bytes);
}

#endif  // MLC_RVV_ACCELERATORS_EXTENSION_FUNCTIONAL_H_
