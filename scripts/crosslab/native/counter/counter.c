// SPDX-License-Identifier: Apache-2.0
// A TCG plugin that counts what a RISC-V guest executes, as a whole and between marks.
//
// Counts are kept by straight-line segment, not by instruction: when QEMU translates a block,
// its instructions are decoded once and summed up; each execution adds the sums. LMUL is
// followed by CPU, because only vset* change it: what a segment holds before its first vset*
// works at the LMUL that the CPU has when it enters. After vsetvl, whose vtype is in a register,
// LMUL is not known: what runs then counts with 1 and is also counted as `unknown`.
//
// Arguments: out=FILE (JSON, written when the guest ends), blocks=on (counts by address).
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decode.h"
#include "qemu_plugin_api.h"

EXPORTED int qemu_plugin_version = MLC_RVV_PLUGIN_API;

enum { MAX_VCPUS = 4096, MAX_REGIONS = 65536 };

struct counts {
  uint64_t insns;
  uint64_t vector;
  uint64_t vset;
  uint64_t vmem;
  uint64_t weighted;
  uint64_t unknown;
};

// Instructions that are executed together.
struct segment {
  struct segment *next;
  uint64_t address;
  struct counts fixed;     // all that does not depend on the LMUL at its entry
  uint64_t open;           // vector instructions that do
  bool sets;               // it changes LMUL, to `lmul` (0: unknown)
  unsigned lmul;
  enum kind mark;          // SCALAR when it is no mark
  uint64_t runs[2];        // outside and inside of the region
  uint64_t open_sum[2];    // their LMULs, summed
  uint64_t open_unknown[2];
};

struct vcpu {
  struct counts counts;
  unsigned lmul;  // 0: unknown
} __attribute__((aligned(128)));

static struct vcpu vcpus[MAX_VCPUS];
static unsigned vcpu_count;
static struct segment *segments;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *out_path;
static bool with_blocks;

static int in_region;
static bool unbalanced;
static struct counts at_begin;
static struct counts regions[MAX_REGIONS];
static size_t region_count;

static void add(struct counts *sum, const struct counts *more) {
  sum->insns += more->insns;
  sum->vector += more->vector;
  sum->vset += more->vset;
  sum->vmem += more->vmem;
  sum->weighted += more->weighted;
  sum->unknown += more->unknown;
}

static struct counts everything(void) {
  struct counts sum = {0};
  for (unsigned i = 0; i < vcpu_count; ++i) add(&sum, &vcpus[i].counts);
  return sum;
}

static struct counts difference(const struct counts *a, const struct counts *b) {
  return (struct counts){a->insns - b->insns, a->vector - b->vector,
                         a->vset - b->vset,   a->vmem - b->vmem,
                         a->weighted - b->weighted, a->unknown - b->unknown};
}

// The region is one for all threads: a thread that begins it opens it for its helpers too.
static void begin_region(void) {
  pthread_mutex_lock(&lock);
  unbalanced |= in_region != 0;
  at_begin = everything();
  in_region = 1;
  pthread_mutex_unlock(&lock);
}

static void end_region(void) {
  pthread_mutex_lock(&lock);
  if (in_region == 0 || region_count == MAX_REGIONS) {
    unbalanced = true;
  } else {
    const struct counts now = everything();
    regions[region_count++] = difference(&now, &at_begin);
  }
  in_region = 0;
  pthread_mutex_unlock(&lock);
}

static void bump(uint64_t *value, uint64_t by) {
  if (vcpu_count > 1) {
    __atomic_fetch_add(value, by, __ATOMIC_RELAXED);
  } else {
    *value += by;
  }
}

static void account(struct vcpu *cpu, struct segment *segment) {
  const unsigned lmul = cpu->lmul ? cpu->lmul : 1;
  add(&cpu->counts, &segment->fixed);
  if (segment->open) {
    cpu->counts.weighted += segment->open * lmul;
    if (!cpu->lmul) cpu->counts.unknown += segment->open;
  }
  if (with_blocks) {
    const int where = in_region;
    bump(&segment->runs[where], 1);
    if (segment->open) {
      bump(&segment->open_sum[where], segment->open * lmul);
      if (!cpu->lmul) bump(&segment->open_unknown[where], segment->open);
    }
  }
  if (segment->sets) cpu->lmul = segment->lmul;
}

static void on_segment(unsigned int index, void *data) { account(&vcpus[index], data); }

// The marks themselves are outside of the region.
static void on_mark(unsigned int index, void *data) {
  struct segment *segment = data;
  if (segment->mark == MARK_END) end_region();
  account(&vcpus[index], segment);
  if (segment->mark == MARK_BEGIN) begin_region();
}

static struct segment *new_segment(uint64_t address, enum kind mark) {
  struct segment *segment = calloc(1, sizeof(*segment));
  if (!segment) abort();
  segment->address = address;
  segment->mark = mark;
  pthread_mutex_lock(&lock);
  segment->next = segments;
  segments = segment;
  pthread_mutex_unlock(&lock);
  return segment;
}

static struct decoded decode_insn(const struct qemu_plugin_insn *insn) {
  const size_t size = qemu_plugin_insn_size(insn);
  uint32_t word = 0;
#if MLC_RVV_PLUGIN_API >= 3
  qemu_plugin_insn_data(insn, &word, size < sizeof(word) ? size : sizeof(word));
#else
  memcpy(&word, qemu_plugin_insn_data(insn), size < sizeof(word) ? size : sizeof(word));
#endif
  return decode(word, (unsigned)size);
}

static void add_vector(struct segment *segment, struct decoded insn) {
  segment->fixed.vector += 1;
  segment->fixed.vmem += insn.memory;
  if (insn.kind == VECTOR_WHOLE) {
    segment->fixed.weighted += insn.registers;
  } else if (!segment->sets) {
    segment->open += 1;
  } else {
    segment->fixed.weighted += segment->lmul ? segment->lmul : 1;
    segment->fixed.unknown += segment->lmul == 0;
  }
}

static void add_insn(struct segment *segment, struct decoded insn) {
  segment->fixed.insns += 1;
  if (insn.kind == VECTOR || insn.kind == VECTOR_WHOLE) {
    add_vector(segment, insn);
    return;
  }
  segment->fixed.weighted += 1;
  if (insn.kind == SET_IMMEDIATE || insn.kind == SET_REGISTER) {
    segment->fixed.vset += 1;
    segment->sets = true;
    segment->lmul = insn.registers;
  }
}

static bool is_mark(enum kind kind) { return kind == MARK_BEGIN || kind == MARK_END; }

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
  (void)id;
  const size_t count = qemu_plugin_tb_n_insns(tb);
  struct segment *segment = NULL;
  for (size_t i = 0; i < count; ++i) {
    struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
    const struct decoded decoded = decode_insn(insn);
    const bool mark = is_mark(decoded.kind);
    if (segment == NULL || mark || is_mark(segment->mark)) {
      segment = new_segment(qemu_plugin_insn_vaddr(insn), mark ? decoded.kind : SCALAR);
      qemu_plugin_register_vcpu_insn_exec_cb(insn, mark ? on_mark : on_segment,
                                             QEMU_PLUGIN_CB_NO_REGS, segment);
    }
    add_insn(segment, decoded);
  }
}

static void on_vcpu(qemu_plugin_id_t id, unsigned int index) {
  (void)id;
  if (index >= MAX_VCPUS) {
    fprintf(stderr, "counter: more than %d threads\n", MAX_VCPUS);
    abort();
  }
  pthread_mutex_lock(&lock);
  vcpus[index].lmul = 0;
  if (index >= vcpu_count) vcpu_count = index + 1;
  pthread_mutex_unlock(&lock);
}

static void print_counts(FILE *file, const struct counts *c) {
  fprintf(file,
          "{\"insns\":%" PRIu64 ",\"vector\":%" PRIu64 ",\"vsetvl\":%" PRIu64 ",\"vmem\":%" PRIu64
          ",\"lmul_weighted\":%" PRIu64 ",\"unknown_lmul\":%" PRIu64 "}",
          c->insns, c->vector, c->vset, c->vmem, c->weighted, c->unknown);
}

static struct counts segment_counts(const struct segment *s, int where) {
  const uint64_t runs = s->runs[where];
  return (struct counts){s->fixed.insns * runs,
                         s->fixed.vector * runs,
                         s->fixed.vset * runs,
                         s->fixed.vmem * runs,
                         s->fixed.weighted * runs + s->open_sum[where],
                         s->fixed.unknown * runs + s->open_unknown[where]};
}

static void print_blocks(FILE *file) {
  const char *before = "";
  fprintf(file, ",\n\"blocks\":[");
  for (const struct segment *s = segments; s; s = s->next) {
    if (s->runs[0] + s->runs[1] == 0) continue;
    const struct counts inside = segment_counts(s, 1);
    struct counts whole = segment_counts(s, 0);
    add(&whole, &inside);
    fprintf(file, "%s\n{\"address\":%" PRIu64 ",\"whole\":", before, s->address);
    print_counts(file, &whole);
    fprintf(file, ",\"region\":");
    print_counts(file, &inside);
    fprintf(file, "}");
    before = ",";
  }
  fprintf(file, "]");
}

static void on_exit_of_guest(qemu_plugin_id_t id, void *data) {
  (void)id;
  (void)data;
  FILE *file = fopen(out_path, "w");
  if (!file) {
    fprintf(stderr, "counter: cannot write %s\n", out_path);
    return;
  }
  const struct counts whole = everything();
  fprintf(file, "{\"threads\":%u,\"balanced\":%s,\n\"whole\":", vcpu_count,
          unbalanced || in_region ? "false" : "true");
  print_counts(file, &whole);
  fprintf(file, ",\n\"regions\":[");
  for (size_t i = 0; i < region_count; ++i) {
    fprintf(file, i ? ",\n" : "\n");
    print_counts(file, &regions[i]);
  }
  fprintf(file, "]");
  if (with_blocks) print_blocks(file);
  fprintf(file, "}\n");
  fclose(file);
}

EXPORTED int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc,
                                 char **argv) {
  if (strcmp(info->target_name, "riscv64") != 0) {
    fprintf(stderr, "counter: only riscv64 guests are counted, not %s\n", info->target_name);
    return -1;
  }
  for (int i = 0; i < argc; ++i) {
    if (strncmp(argv[i], "out=", 4) == 0) {
      out_path = strdup(argv[i] + 4);
    } else if (strcmp(argv[i], "blocks=on") == 0) {
      with_blocks = true;
    } else {
      fprintf(stderr, "counter: unknown argument %s\n", argv[i]);
      return -1;
    }
  }
  if (!out_path) {
    fprintf(stderr, "counter: the argument out=FILE is missing\n");
    return -1;
  }
  qemu_plugin_register_vcpu_init_cb(id, on_vcpu);
  qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
  qemu_plugin_register_atexit_cb(id, on_exit_of_guest, NULL);
  return 0;
}
