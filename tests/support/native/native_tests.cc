// SPDX-License-Identifier: Apache-2.0
// All test programs of the runner in one: `native_tests NAME ARGUMENTS`, or a link with the name. Each source
// defines main(), which the build renames to NAME_main.
#include <cstring>
#include <iostream>
#include <string>

#ifndef PROGRAMS
#define PROGRAMS(X)  \
  X(answer_probe)    \
  X(cpus_probe)      \
  X(grammar_probe)   \
  X(pace_probe)      \
  X(picture_probe)   \
  X(sampling_probe)  \
  X(scripted_router) \
  X(scripted_server) \
  X(tokenizer_probe) \
  X(unit)
#endif

#define DECLARE(name) int name##_main(int argc, char** argv);
PROGRAMS(DECLARE)
#undef DECLARE

namespace {

using Main = int (*)(int, char**);

Main Find(const std::string& wanted) {
#define COMPARE(name) \
  if (wanted == #name) return name##_main;
  PROGRAMS(COMPARE)
#undef COMPARE
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  const char* slash = std::strrchr(argv[0], '/');
  if (const Main linked = Find(slash != nullptr ? slash + 1 : argv[0])) return linked(argc, argv);
  if (const Main named = argc > 1 ? Find(argv[1]) : nullptr) return named(argc - 1, argv + 1);
#define PRINT(name) " " #name
  std::cerr << "usage: native_tests NAME ARGUMENTS\nnames:" PROGRAMS(PRINT) "\n";
#undef PRINT
  return 2;
}
