// SPDX-License-Identifier: Apache-2.0
#include "program/threads.h"

#include <cstdlib>
#include <string>

#include "model/cpus.h"

namespace rvv_runner {

void SetThreads(int64_t threads) {
  // Each thread that starts computation has a pool of its own in TVM's runtime, which reads these
  // variables when it is made.
  const std::string count = std::to_string(threads > 0 ? threads : PhysicalCores());
  setenv("TVM_NUM_THREADS", count.c_str(), threads > 0 ? 1 : 0);
  // TVM binds threads to the CPUs 0, 1, ..., also to those that cannot run the library.
  setenv("TVM_BIND_THREADS", "0", 0);
  // A worker waits busily so many rounds for more work. The gaps in a step are far shorter than
  // this many rounds take, and TVM's default of 300,000 keeps cores busy long after an answer.
  setenv("TVM_THREAD_POOL_SPIN_COUNT", "10000", 0);
}

}  // namespace rvv_runner
