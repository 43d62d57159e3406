// SPDX-License-Identifier: Apache-2.0
#include "program/threads.h"

#include <cstdlib>
#include <string>

#include "model/cpus.h"

namespace rvv_runner {
namespace {

constexpr char kThreads[] = "TVM_NUM_THREADS";
constexpr char kRounds[] = "TVM_THREAD_POOL_SPIN_COUNT";

}  // namespace

void SetThreads(int64_t threads) {
  // Each thread that starts computation has a pool of its own in TVM's runtime, which reads these
  // variables when it is made.
  const std::string count = std::to_string(threads > 0 ? threads : PhysicalCores());
  setenv(kThreads, count.c_str(), threads > 0 ? 1 : 0);
  // TVM binds threads to the CPUs 0, 1, ..., also to those that cannot run the library.
  setenv("TVM_BIND_THREADS", "0", 0);
  // A worker waits busily so many rounds for more work. The gaps in a step are far shorter than
  // this many rounds take, and TVM's default of 300,000 keeps cores busy long after an answer.
  // Where threads share a CPU, a busy worker would keep from it the one that has work.
  static std::string ours;
  const char* rounds = getenv(kRounds);
  if (rounds != nullptr && rounds != ours) return;  // the user's choice
  ours = std::atoll(getenv(kThreads)) > AllowedCpus() ? "0" : "10000";
  setenv(kRounds, ours.c_str(), 1);
}

}  // namespace rvv_runner
