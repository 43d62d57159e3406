// SPDX-License-Identifier: Apache-2.0
// Marks the region of interest for an instruction counter. The marks are HINT instructions
// (slti x0, x0, imm), which change nothing on any RISC-V CPU.
#pragma once

#include <cstdint>

namespace rvv_runner {

// Which calls lie inside the region of interest, and how much of each.
struct Region {
  bool prefill = true;
  bool decode = true;
  // The whole step (embedding, cache bookkeeping, the call), not the model call alone.
  bool whole_step = false;
  // Places in the cache that each sequence has before its first call. They are never computed, so
  // that a long context can be counted without its prompt; answers mean nothing then.
  int64_t depth = 0;
};

class RegionOfInterest {
 public:
  explicit RegionOfInterest(bool marked) : marked_(marked) {
    if (marked_) Begin();
  }
  ~RegionOfInterest() {
    if (marked_) End();
  }
  RegionOfInterest(const RegionOfInterest&) = delete;
  RegionOfInterest& operator=(const RegionOfInterest&) = delete;

 private:
#if defined(__riscv)
  static void Begin() { asm volatile(".word 0x7c102013" ::: "memory"); }
  static void End() { asm volatile(".word 0x7c202013" ::: "memory"); }
#else
  static void Begin() {}
  static void End() {}
#endif

  bool marked_;
};

}  // namespace rvv_runner
