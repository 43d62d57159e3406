// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace rvv_runner {

// What a CPU's vector unit can do, or what a library needs.
struct VectorUnit {
  int64_t bits = 0;     // in a vector register; 0: no vectors
  bool halves = false;  // vectors of halves (Zvfh)
  bool ime = false;     // SpacemiT's matrix unit: vmadot on registers of 256 bits
};

// The unit of the CPU that the calling thread runs on; off riscv64, where libraries state no needs,
// a unit that meets all. It executes instructions under a handler of
// SIGILL: no other thread may call it at the same time.
// With `matrix` a child process tries the matrix unit, and compares what it computes.
VectorUnit ProbeVectorUnit(bool matrix);

}  // namespace rvv_runner
