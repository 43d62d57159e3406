// SPDX-License-Identifier: Apache-2.0
//
// SpacemiT's vmadot for programs under QEMU, which has no such instruction: a handler of SIGILL that
// computes it on the vector registers, with int8 registers of 256 bits. QEMU in user mode leaves the
// vector registers as they are while a handler runs and after it, so that the handler reads and
// writes them; it is compiled without vectors and has no other vector instruction.
//
// MLC_RVV_USE_IME=1 sets the kernels' switch, as the runner does. With MLC_RVV_COUNT_VMADOT the
// number of executed instructions is printed to standard error at the end.

#define _GNU_SOURCE
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

enum { SIDE = 4, INPUTS = 8, BYTES = 32, REGISTERS = 32 };

extern int mlc_rvv_use_ime __attribute__((weak));
static atomic_long executed;

static int is_vmadot(uint32_t word) { return (word & 0xfe00707f) == 0xe200302b; }

static void stop(const char *why) {
  if (write(STDERR_FILENO, why, strlen(why)) < 0) _exit(70);
  _exit(71);
}

static void multiply(uint8_t (*v)[BYTES], uint32_t word) {
  const uint32_t vd = word >> 7 & 31, vs1 = word >> 15 & 31, vs2 = word >> 20 & 31;
  if (vd % 2) stop("vmadot: its sums begin at an odd register\n");
  if (vd / 2 == vs1 / 2 || vd / 2 == vs2 / 2) stop("vmadot: its sums overlap an operand\n");
  const int8_t *x = (const int8_t *)v[vs1], *w = (const int8_t *)v[vs2];
  uint32_t sums[SIDE][SIDE];
  memcpy(sums, v[vd], sizeof(sums));
  for (int i = 0; i < SIDE; ++i) {
    for (int j = 0; j < SIDE; ++j) {
      int32_t sum = 0;
      for (int n = 0; n < INPUTS; ++n) sum += x[i * INPUTS + n] * w[j * INPUTS + n];
      sums[i][j] += (uint32_t)sum;
    }
  }
  memcpy(v[vd], sums, sizeof(sums));
}

static void on_illegal(int signal_number, siginfo_t *about, void *context) {
  (void)about;
  unsigned long *pc = &((ucontext_t *)context)->uc_mcontext.__gregs[REG_PC];
  uint32_t word;
  memcpy(&word, (const void *)*pc, sizeof(word));
  if (!is_vmadot(word)) {
    // It runs again, and ends the program.
    signal(signal_number, SIG_DFL);
    return;
  }
  uint64_t type, bytes;
  __asm__ volatile("csrr %0, 0xc21" : "=r"(type));
  __asm__ volatile("csrr %0, 0xc22" : "=r"(bytes));
  if (bytes != BYTES) {
    signal(signal_number, SIG_DFL);
    return;
  }
  if (type & 0x3f) stop("vmadot: the vector type is not e8, m1\n");
  uint8_t v[REGISTERS][BYTES];
  __asm__ volatile(
      ".option push\n.option arch, +v\n"
      "vs8r.v v0, (%0)\nvs8r.v v8, (%1)\nvs8r.v v16, (%2)\nvs8r.v v24, (%3)\n.option pop"
      :
      : "r"(v[0]), "r"(v[8]), "r"(v[16]), "r"(v[24])
      : "memory");
  // Neighbours are done at once: a signal takes longer than all that they compute.
  for (; is_vmadot(word); memcpy(&word, (const void *)*pc, sizeof(word))) {
    multiply(v, word);
    atomic_fetch_add_explicit(&executed, 1, memory_order_relaxed);
    *pc += sizeof(word);
  }
  __asm__ volatile(
      ".option push\n.option arch, +v\n"
      "vl8re8.v v0, (%0)\nvl8re8.v v8, (%1)\nvl8re8.v v16, (%2)\nvl8re8.v v24, (%3)\n.option pop"
      :
      : "r"(v[0]), "r"(v[8]), "r"(v[16]), "r"(v[24])
      : "memory");
}

static void print_count(void) { fprintf(stderr, "vmadot: %ld\n", atomic_load(&executed)); }

__attribute__((constructor)) static void begin(void) {
  struct sigaction action = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO};
  sigemptyset(&action.sa_mask);
  sigaction(SIGILL, &action, NULL);
  if (&mlc_rvv_use_ime != NULL && getenv("MLC_RVV_USE_IME") != NULL) mlc_rvv_use_ime = 1;
  if (getenv("MLC_RVV_COUNT_VMADOT") != NULL) atexit(print_count);
}
