// SPDX-License-Identifier: Apache-2.0
// Chooses CPUs and a library. Arguments: the CPUs' units, the libraries' needs, each as BITS or
// BITSh (with vectors of halves) or BITSm (with the matrix unit), and g for a gated CPU, separated
// by commas. Prints the library's index and the numbers of the CPUs that run it; then how many CPUs
// this machine has, and how many it stays on when it stays on the first.
//
// With "gate FILE OPEN" it plays a machine of the CPUs 0 and 1, and of the CPUs 2 to 5, of which a
// thread may run on the first OPEN after its number is a line of FILE, and then on no others.
// Prints the CPUs that the probe finds, with g behind gated ones; then those of a thread that stays
// on the gated ones. If OPEN is above 1, the gate then opens one alone, and "refused" is printed.
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "input/errors.h"
#include "model/cpus.h"

namespace {

std::vector<rvv_runner::VectorUnit> Units(const std::string& text) {
  std::vector<rvv_runner::VectorUnit> units;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, ',');) {
    const auto has = [&](char mark) { return word.find(mark) != std::string::npos; };
    units.push_back({std::stoll(word), has('h'), has('m')});
  }
  return units;
}

const char* played_gate = nullptr;  // the machine is played if it is set
constexpr unsigned kOrdinary = 2;
unsigned open_cpus = 0;
thread_local bool through = false;  // this thread or its parent opened the gate
thread_local cpu_set_t* kept = nullptr;

bool Through() {
  std::ifstream file(played_gate);
  const std::string self = std::to_string(syscall(SYS_gettid));
  for (std::string line; !through && std::getline(file, line);) through = line == self;
  return through;
}

bool MayRun(unsigned id) {
  return Through() ? id >= kOrdinary && id < kOrdinary + open_cpus : id < kOrdinary;
}

std::string Allowed() {
  cpu_set_t set;
  sched_getaffinity(0, sizeof(set), &set);
  std::string text;
  for (unsigned id = 0; id < CPU_SETSIZE; ++id) {
    if (CPU_ISSET(id, &set)) text += " " + std::to_string(id);
  }
  return text;
}

int PlayGate(const char* gate, unsigned open) {
  using namespace rvv_runner;
  played_gate = gate;
  open_cpus = open;
  const std::vector<Cpu> cpus = ProbeCpus(false, gate);
  for (const Cpu& cpu : cpus) std::cout << " " << cpu.id << (cpu.gated ? "g" : "");
  std::cout << "\n";
  std::vector<Cpu> gated;
  for (const Cpu& cpu : cpus) {
    if (cpu.gated) gated.push_back(cpu);
  }
  if (gated.empty()) return 0;
  if (open > 1) open_cpus = 1;  // a gate that refuses what it let the probe do
  try {
    StayOn(gated, gate);
    std::cout << Allowed() << "\n";
  } catch (const RunError&) {
    std::cout << "refused" << Allowed() << "\n";
  }
  return 0;
}

}  // namespace

extern "C" int sched_getaffinity(pid_t pid, size_t size, cpu_set_t* set) noexcept {
  CPU_ZERO(set);
  if (!played_gate) return syscall(SYS_sched_getaffinity, pid, size, set) < 0 ? -1 : 0;
  if (kept) {
    *set = *kept;
    return 0;
  }
  for (unsigned id = 0; id < CPU_SETSIZE; ++id) {
    if (MayRun(id)) CPU_SET(id, set);
  }
  return 0;
}

extern "C" int sched_setaffinity(pid_t pid, size_t size, const cpu_set_t* set) noexcept {
  if (!played_gate) return static_cast<int>(syscall(SYS_sched_setaffinity, pid, size, set));
  for (unsigned id = 0; id < CPU_SETSIZE; ++id) {
    if (CPU_ISSET(id, set) && !MayRun(id)) {
      errno = EINVAL;
      return -1;
    }
  }
  static thread_local cpu_set_t own;
  own = *set;
  kept = &own;
  return 0;
}

int main(int count, char** argv) {
  using namespace rvv_runner;
  if (count == 4) return PlayGate(argv[2], static_cast<unsigned>(std::stoul(argv[3])));
  std::vector<Cpu> cpus;
  std::istringstream words(argv[1]);
  for (const VectorUnit& unit : Units(argv[1])) {
    const auto id = static_cast<unsigned>(cpus.size());
    std::string word;
    std::getline(words, word, ',');
    cpus.push_back({id, id, unit, word.find('g') != std::string::npos});
  }
  const auto needs = Units(argv[2]);
  try {
    const size_t best = BestLibrary(cpus, needs);
    std::cout << best;
    for (const Cpu& cpu : CpusThatRun(cpus, needs[best])) std::cout << " " << cpu.id;
  } catch (const InputError& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
  auto here = ProbeCpus();
  std::cout << "\n" << here.size();
  here.resize(1);
  StayOn(here);
  std::cout << " " << ProbeCpus().size() << " " << PhysicalCores() << "\n";
  return 0;
}
