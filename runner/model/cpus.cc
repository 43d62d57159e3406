// SPDX-License-Identifier: Apache-2.0
#include "model/cpus.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <thread>
#include <utility>

#include "input/errors.h"

namespace rvv_runner {
namespace {

// The numbers of the CPUs that the calling thread may run on; empty if the kernel does not tell.
std::vector<unsigned> Allowed() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<unsigned> ids;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return ids;
  for (unsigned id = 0; id < CPU_SETSIZE; ++id) {
    if (CPU_ISSET(id, &set)) ids.push_back(id);
  }
  return ids;
}

bool Pin(const std::vector<unsigned>& ids) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const unsigned id : ids) CPU_SET(id, &set);
  return sched_setaffinity(0, sizeof(set), &set) == 0;
}

// Lets the calling thread run on gated CPUs; false if the file is missing or the kernel refuses.
bool Open(const char* gate) {
  const int file = open(gate, O_WRONLY | O_APPEND | O_CLOEXEC);
  if (file < 0) return false;
  const std::string thread = std::to_string(syscall(SYS_gettid)) + "\n";
  const bool written =
      write(file, thread.data(), thread.size()) == static_cast<ssize_t>(thread.size());
  close(file);
  return written;
}

// The CPUs that a thread cannot run on unless it opens the gate; some may stay closed after it.
std::vector<unsigned> Closed(const std::vector<unsigned>& allowed, const char* gate) {
  std::set<unsigned> ids;
  std::thread([&] {
    if (!Open(gate)) return;
    for (const unsigned id : Allowed()) ids.insert(id);
    const long configured = sysconf(_SC_NPROCESSORS_CONF);
    for (long id = 0; id < configured; ++id) ids.insert(static_cast<unsigned>(id));
  }).join();
  for (const unsigned id : allowed) ids.erase(id);
  return {ids.begin(), ids.end()};
}

// A list of siblings such as "0-1" or "0,4" begins with the lowest number.
unsigned CoreOf(unsigned id) {
  std::ifstream stream("/sys/devices/system/cpu/cpu" + std::to_string(id) +
                       "/topology/thread_siblings_list");
  unsigned lowest = 0;
  return stream >> lowest ? lowest : id;
}

// The CPUs that can run code that needs this unit: gated ones or the others, whichever are more.
std::vector<Cpu> Fitting(const std::vector<Cpu>& cpus, const VectorUnit& needed) {
  std::vector<Cpu> open, gated;
  for (const Cpu& cpu : cpus) {
    if (Runs(cpu, needed)) (cpu.gated ? gated : open).push_back(cpu);
  }
  return gated.size() > open.size() ? gated : open;
}

std::string Written(const VectorUnit& unit) {
  if (unit.bits == 0) return "no vector registers";
  return "vector registers of " + std::to_string(unit.bits) + " bits";
}

}  // namespace

std::vector<Cpu> ProbeCpus(bool matrix, const char* gate) {
  std::vector<Cpu> cpus;
  const std::vector<unsigned> allowed = Allowed();
  // A thread of its own for each CPU, so that the caller stays where it is.
  const auto probe = [&](unsigned id, bool gated) {
    std::thread([&] {
      if (gated && !Open(gate)) return;
      if (Pin({id})) cpus.push_back({id, CoreOf(id), ProbeVectorUnit(matrix), gated});
    }).join();
  };
  for (const unsigned id : allowed) probe(id, false);
  for (const unsigned id : Closed(allowed, gate)) probe(id, true);
  // Without leave to move, the CPU under this thread stands for all.
  if (cpus.empty()) cpus.push_back({0, 0, ProbeVectorUnit(matrix)});
  return cpus;
}

bool Runs(const Cpu& cpu, const VectorUnit& needed) {
  return cpu.unit.bits >= needed.bits && (cpu.unit.halves || !needed.halves) &&
         (cpu.unit.ime || !needed.ime);
}

size_t BestLibrary(const std::vector<Cpu>& cpus, const std::vector<VectorUnit>& libraries) {
  size_t best = 0;
  int64_t most = 0;
  for (size_t i = 0; i < libraries.size(); ++i) {
    // The matrix unit does not count: no CPU stays idle for it.
    const int64_t bits = std::ssize(Fitting(cpus, libraries[i])) * libraries[i].bits;
    const auto rank = [&](size_t of) { return std::pair(libraries[of].bits, libraries[of].ime); };
    if (bits > most || (bits == most && bits > 0 && rank(i) > rank(best))) {
      best = i;
      most = bits;
    }
  }
  return best;
}

std::vector<Cpu> CpusThatRun(const std::vector<Cpu>& cpus, const VectorUnit& needed) {
  std::vector<Cpu> fit = Fitting(cpus, needed);
  if (!fit.empty()) return fit;
  VectorUnit have;
  for (const Cpu& cpu : cpus) have.bits = std::max(have.bits, cpu.unit.bits);
  std::string lacks = "vectors of halves (Zvfh), but this CPU has none";
  if (have.bits < needed.bits) {
    lacks = "vector registers of at least " + std::to_string(needed.bits) +
            " bits, but this CPU has " + Written(have);
  }
  throw InputError("the model library was compiled for " + lacks +
                   "; compile the model for this CPU");
}

void StayOn(const std::vector<Cpu>& cpus, const char* gate) {
  std::vector<unsigned> ids;
  for (const Cpu& cpu : cpus) ids.push_back(cpu.id);
  const bool gated = std::any_of(cpus.begin(), cpus.end(), [](auto& cpu) { return cpu.gated; });
  if (gated) Open(gate);
  const std::vector<unsigned> allowed = Allowed();
  if (ids != allowed && !allowed.empty() && !Pin(ids)) {
    throw RunError("this process cannot be kept on the CPUs that can run the model library");
  }
}

int64_t AllowedCpus() { return static_cast<int64_t>(Allowed().size()); }

int64_t PhysicalCores() {
  std::set<unsigned> cores;
  for (const unsigned id : Allowed()) cores.insert(CoreOf(id));
  return std::max<int64_t>(1, static_cast<int64_t>(cores.size()));
}

}  // namespace rvv_runner
