// SPDX-License-Identifier: Apache-2.0
// Calls loops of loops.S between the counter's marks: core_check NAME ELEMENTS [NAME ELEMENTS]...
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOPS(X)                                                                          \
  X(copy_m1) X(copy_m2) X(copy_m4) X(copy_m8) X(copy_whole_m1) X(copy_whole_m8)           \
  X(count_m1) X(count_m2) X(count_m4) X(count_m8) X(swap_m1) X(swap_m2) X(swap_m4)        \
  X(swap16_m1) X(swap16_m2) X(swap_fields_m1) X(picture_m1) X(picture_m2) X(hash) X(count_top_m1) X(count_top_m2) X(count_top_m4) X(count_top_m8) X(count_whole_m1) X(count_whole_m2) X(count_whole_m4) X(count_whole_m8) X(count_four_m1) X(count_four_m2) X(count_four_m4) X(count_four_m8) X(fill_m1) X(fill_m2) X(fill_m4) X(fill_m8) X(fill_whole_m1) X(fill_whole_m2) X(fill_whole_m4) X(fill_whole_m8) X(look_up_m1) X(look_up_m2) X(look_up_m4) X(look_up_m8)

#define DECLARE(name) extern void name(void *data, long elements);
LOOPS(DECLARE)

static const struct {
  const char *name;
  void (*loop)(void *data, long elements);
} loops[] = {
#define ENTRY(name) {#name, name},
    LOOPS(ENTRY)};

static char data[1 << 20] __attribute__((aligned(4096)));

static void call(const char *name, long elements) {
  for (size_t i = 0; i < sizeof(loops) / sizeof(*loops); ++i) {
    if (strcmp(loops[i].name, name) != 0) continue;
    __asm__ volatile(".word 0x7c102013" ::: "memory");
    loops[i].loop(data, elements);
    __asm__ volatile(".word 0x7c202013" ::: "memory");
    return;
  }
  fprintf(stderr, "core_check: no loop %s\n", name);
  exit(1);
}

int main(int argc, char **argv) {
  for (size_t i = 0; i < sizeof(data); ++i) data[i] = (char)(i * 37);
  for (int i = 1; i + 1 < argc; i += 2) call(argv[i], atol(argv[i + 1]));
  return 0;
}
