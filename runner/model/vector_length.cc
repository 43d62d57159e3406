// SPDX-License-Identifier: Apache-2.0
#include "model/vector_length.h"

#include <string>

#include "input/errors.h"

#if defined(__riscv)
#include <setjmp.h>
#include <signal.h>
#endif

namespace rvv_runner {

#if defined(__riscv)
namespace {

sigjmp_buf no_vectors;

void OnIllegalInstruction(int) { siglongjmp(no_vectors, 1); }

// By the register's number (vlenb), because this file is compiled without the extension.
int64_t ReadVlenb() {
  uint64_t bytes;
  asm volatile("csrr %0, 0xc22" : "=r"(bytes));
  return static_cast<int64_t>(bytes);
}

}  // namespace

// Tried, and not read from the kernel's AT_HWCAP: older emulators do not report V there.
int64_t VectorLength() {
  struct sigaction trap = {};
  struct sigaction before = {};
  trap.sa_handler = OnIllegalInstruction;
  sigemptyset(&trap.sa_mask);
  sigaction(SIGILL, &trap, &before);
  volatile int64_t bits = 0;
  if (sigsetjmp(no_vectors, 1) == 0) bits = ReadVlenb() * 8;
  sigaction(SIGILL, &before, nullptr);
  return bits;
}

void CheckVectorLength(int64_t required) {
  if (required == 0) return;
  const int64_t have = VectorLength();
  if (have >= required) return;
  const std::string cpu = have == 0 ? "has no vector registers"
                                    : "has vector registers of " + std::to_string(have) + " bits";
  throw InputError("the model library was compiled for vector registers of at least " +
                   std::to_string(required) + " bits, and this CPU " + cpu +
                   "; compile the model for this CPU");
}
#else
int64_t VectorLength() { return 0; }

void CheckVectorLength(int64_t) {}
#endif

}  // namespace rvv_runner
