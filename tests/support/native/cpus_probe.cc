// SPDX-License-Identifier: Apache-2.0
// Chooses CPUs and a library. Arguments: the CPUs' units, the libraries' needs, each as BITS or
// BITSh (with vectors of halves) or BITSm (with the matrix unit), separated by commas. Prints the library's index and the numbers
// of the CPUs that run it; then how many CPUs this machine has, and how many it stays on when it
// stays on the first.
#include <iostream>
#include <sstream>
#include <string>
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

}  // namespace

int main(int, char** argv) {
  using namespace rvv_runner;
  std::vector<Cpu> cpus;
  for (const VectorUnit& unit : Units(argv[1])) {
    const auto id = static_cast<unsigned>(cpus.size());
    cpus.push_back({id, id, unit});
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
