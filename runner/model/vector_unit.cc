// SPDX-License-Identifier: Apache-2.0
#include "model/vector_unit.h"

#include <limits>

#if defined(__riscv)
#include <setjmp.h>
#include <signal.h>
#endif

namespace rvv_runner {

#if defined(__riscv)
namespace {

sigjmp_buf not_there;

void OnIllegalInstruction(int) { siglongjmp(not_there, 1); }

// True if the CPU can execute these instructions. It executes them instead of asking the kernel,
// because older emulators report no V in AT_HWCAP, and older kernels have no hwprobe.
bool Executes(void (*instructions)()) {
  struct sigaction trap = {};
  struct sigaction before = {};
  trap.sa_handler = OnIllegalInstruction;
  sigemptyset(&trap.sa_mask);
  sigaction(SIGILL, &trap, &before);
  volatile bool done = false;
  if (sigsetjmp(not_there, 1) == 0) {
    instructions();
    done = true;
  }
  sigaction(SIGILL, &before, nullptr);
  return done;
}

// Here and below instructions are numbers, because this file is compiled without the extensions.
uint64_t ReadVlenb() {
  uint64_t bytes;
  asm volatile("csrr %0, 0xc22" : "=r"(bytes));
  return bytes;
}

// vsetivli zero, 1, e16, m1, ta, ma; vfwcvt.f.f.v v8, v16; fcvt.s.h ft0, ft0
void ConvertHalves() { asm volatile(".4byte 0xcc80f057, 0x4b061457, 0x40200053" : : : "ft0"); }

}  // namespace

VectorUnit ProbeVectorUnit() {
  if (!Executes([] { ReadVlenb(); })) return {};
  return {static_cast<int64_t>(ReadVlenb()) * 8, Executes(ConvertHalves)};
}
#else
VectorUnit ProbeVectorUnit() { return {std::numeric_limits<int64_t>::max(), true}; }
#endif

}  // namespace rvv_runner
