// SPDX-License-Identifier: Apache-2.0
#include "model/vector_unit.h"

#include <limits>

#if defined(__riscv)
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
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

// True if vmadot adds to 4 x 4 sums the products of four rows of eight bytes with four others.
bool Multiplies() {
  constexpr int kSide = 4, kInputs = 8;
  int8_t rows[kSide * kInputs], columns[kSide * kInputs];
  int32_t sums[kSide * kSide], expected[kSide * kSide];
  for (int i = 0; i < kSide * kInputs; ++i) {
    rows[i] = static_cast<int8_t>(37 * i - 128);
    columns[i] = static_cast<int8_t>(101 * i + 127);
  }
  for (int i = 0; i < kSide * kSide; ++i) {
    const int8_t* row = rows + i / kSide * kInputs;
    const int8_t* column = columns + i % kSide * kInputs;
    sums[i] = 1000 - 77 * i;
    expected[i] = sums[i];
    for (int n = 0; n < kInputs; ++n) expected[i] += row[n] * column[n];
  }
  // vsetvli t0, zero, e8, m1, ta, ma; vle8.v v8, (a0); vle8.v v9, (a1); vl2re8.v v10, (a2);
  // vmadot v10, v8, v9; vs2r.v v10, (a2)
  register const void* left asm("a0") = rows;
  register const void* right asm("a1") = columns;
  register void* to asm("a2") = sums;
  asm volatile(".4byte 0x0c0072d7, 0x02050407, 0x02058487, 0x22860507, 0xe294352b, 0x22860527"
               :
               : "r"(left), "r"(right), "r"(to)
               : "t0", "memory");
  return std::memcmp(sums, expected, sizeof(sums)) == 0;
}

void OnNoMatrixUnit(int) { _exit(1); }

// A child tries, because it is not known what such an instruction does to a CPU of another kind.
bool HasMatrixUnit() {
  const pid_t child = fork();
  if (child < 0) return false;
  if (child == 0) {
    struct sigaction before = {};
    sigaction(SIGILL, nullptr, &before);
    // Without a handler the end would be written down as a crash.
    if (before.sa_handler == SIG_DFL) signal(SIGILL, OnNoMatrixUnit);
    _exit(Multiplies() ? 0 : 1);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

VectorUnit ProbeVectorUnit(bool matrix) {
  if (!Executes([] { ReadVlenb(); })) return {};
  const int64_t bits = static_cast<int64_t>(ReadVlenb()) * 8;
  return {bits, Executes(ConvertHalves), matrix && bits == 256 && HasMatrixUnit()};
}
#else
VectorUnit ProbeVectorUnit(bool) { return {std::numeric_limits<int64_t>::max(), true, false}; }
#endif

}  // namespace rvv_runner
