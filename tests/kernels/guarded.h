// SPDX-License-Identifier: Apache-2.0
//
// Buffers that end where an access past them is caught: at a page that may not be touched, or,
// under AddressSanitizer (DRIVER_RED_ZONES), in its red zones.
#ifndef TESTS_KERNELS_GUARDED_H_
#define TESTS_KERNELS_GUARDED_H_

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static void fail(const char *what) {
  fprintf(stderr, "driver: %s\n", what);
  exit(1);
}

#ifdef DRIVER_RED_ZONES
static void *place(size_t bytes) { return malloc(bytes); }
static void release(void *data, size_t bytes) {
  (void)bytes;
  free(data);
}
#else
static size_t whole_pages(size_t bytes) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}
static void *place(size_t bytes) {
  const size_t room = whole_pages(bytes), page = (size_t)sysconf(_SC_PAGESIZE);
  char *base = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED || mprotect(base + room, page, PROT_NONE) != 0) fail("no memory");
  return base + room - bytes;
}
static void release(void *data, size_t bytes) {
  const size_t room = whole_pages(bytes), page = (size_t)sysconf(_SC_PAGESIZE);
  munmap((char *)data + bytes - room, room + page);
}
#endif

#endif  // TESTS_KERNELS_GUARDED_H_
