// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <ctime>

namespace rvv_runner {

// Aborts if its thread computes for more than two seconds in its life: an input of 64 KiB, read by
// a program with sanitizers, takes a hundredth of it. What other processes do does not count.
class BoundedTime {
 public:
  ~BoundedTime() {
    if (std::clock() - start_ > 2 * CLOCKS_PER_SEC) std::abort();
  }

 private:
  std::clock_t start_ = std::clock();
};

}  // namespace rvv_runner
