// SPDX-License-Identifier: Apache-2.0
// The CPUs of this machine. Chips exist whose cores differ: their vector registers have different
// lengths, or some cores lack an extension.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/vector_unit.h"

namespace rvv_runner {

struct Cpu {
  unsigned id = 0;    // Linux' number
  unsigned core = 0;  // lowest number of a CPU on the same physical core
  VectorUnit unit;
  bool gated = false;  // a thread may run on it only after it has opened kGate
};

// On SpacemiT's K3, a thread may run on the A100 cores after it has written its number to this
// file, which it must do before its first vector instruction. Other machines lack the file.
inline constexpr char kGate[] = "/proc/set_ai_thread";

// The CPUs that this process may run on, each probed by a thread on it; `matrix`: also for
// SpacemiT's matrix unit; `gate`: file that opens further CPUs to a thread. CPUs that stay closed
// are left out.
std::vector<Cpu> ProbeCpus(bool matrix = false, const char* gate = kGate);

// True if the CPU can run code that needs this unit.
bool Runs(const Cpu& cpu, const VectorUnit& needed);

// The best of several libraries, given by what they need: the one with which the CPUs that can run
// it compute most, counted in bits of vector registers. Gated CPUs and others do not compute together.
// Among equals, the one for the longer registers, then the one for the matrix unit. Returns the first
// library if no CPU can run any of them.
size_t BestLibrary(const std::vector<Cpu>& cpus, const std::vector<VectorUnit>& libraries);

// The CPUs that can run code that needs this unit: gated ones or the others, whichever compute more,
// because a thread that moves between vector registers of two lengths loses its numbers. Throws InputError if there is none: code for
// longer registers does not fail on shorter ones but computes wrong numbers.
std::vector<Cpu> CpusThatRun(const std::vector<Cpu>& cpus, const VectorUnit& needed);

// Keeps the calling thread, and the threads that it starts later, on these CPUs. It must not have
// executed a vector instruction if they are gated. Throws RunError if the kernel refuses.
void StayOn(const std::vector<Cpu>& cpus, const char* gate = kGate);

// The number of CPUs that the calling thread may run on; hardware threads count.
int64_t AllowedCpus();

// The number of physical cores of the CPUs that the calling thread may run on.
int64_t PhysicalCores();

}  // namespace rvv_runner
