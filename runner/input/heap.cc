// SPDX-License-Identifier: Apache-2.0
#include "input/heap.h"

#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace rvv_runner {

void ReturnFreedMemory() {
#ifdef __GLIBC__
  mallopt(M_ARENA_MAX, 2);
  // Setting a threshold keeps it: by default it grows with the largest block that is freed.
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
#endif
}

TrimmedHeap::~TrimmedHeap() {
#ifdef __GLIBC__
  if (wanted_) malloc_trim(0);
#endif
}

}  // namespace rvv_runner
