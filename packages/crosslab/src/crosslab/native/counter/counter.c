// SPDX-License-Identifier: Apache-2.0
// A TCG plugin that counts the instructions of a RISC-V guest, outside of and between marks.
//
// The plugin counts runs of straight-line segments, by the vtype of the CPU at entry. Only vset*
// changes vtype, so segment and vtype give SEW and LMUL of every instruction. The reader of the
// report decodes the instructions (crosslab/run/decode.py). Runs are counted by thread, and by the
// previous segment, so that the report has the order of execution.
// The elements that strided, indexed and segment loads and stores move are counted individually.
//
// With `caches`, every load and store between marks passes through two data caches of one core, and
// the missed lines of each segment are counted.
//
// A third mark writes the report immediately and begins the next report, for a guest that reads its
// own counts while it runs.
//
// Arguments: out=FILE (JSON, written when the guest ends, or passes the third mark),
// caches=LINE:SIZE:WAYS:SIZE:WAYS (bytes of a line; L1 and L2).
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "decode.h"
#include "qemu_plugin_api.h"

EXPORTED int qemu_plugin_version = MLC_RVV_PLUGIN_API;

enum { MAX_VCPUS = 4096 };

// Cache lines of a segment: missed in L1, missed in L2, and written back to memory for them.
enum { MISSES_L1, MISSES_L2, WRITTEN_BACK, TRAFFIC };
// In the report, in place of an instruction's number.
enum { INDEX_RUNS = -1, INDEX_TRAFFIC = -2 };

// A load or store whose elements are counted, by vtype at the segment's entry.
struct access {
  struct access *next;
  const struct segment *segment;
  size_t index;  // number of the instruction in its segment
  uint64_t elements[VTYPES];
};

struct edge;

// A segment, entered by a thread with a vtype.
struct node {
  struct node *next;
  struct segment *segment;
  int vtype;  // 0 if the segment does not depend on vtype
  unsigned thread;
  struct edge *edges;  // from the previous nodes
};

// Runs of a node after the node `from` (NULL: first of a thread), since the last mark.
struct edge {
  struct edge *next;
  const struct node *from;
  uint64_t times;
};

// Instructions that are executed together.
struct segment {
  struct segment *next;
  uint64_t id;
  uint64_t address;
  uint32_t *words;
  size_t count;
  bool typed;  // an instruction depends on vtype at its entry
  bool sets;   // an instruction sets vtype, finally to `vtype`
  unsigned vtype;
  enum kind mark;              // OTHER for a segment that is not a mark
  struct node *nodes[VTYPES];  // a node for each thread that entered the segment
  struct access *accesses;
  uint64_t traffic[TRAFFIC];
  bool recorded;  // a record of the next report names it
};

struct vcpu {
  unsigned vtype;
  unsigned entry;  // vtype at entry of the current segment
  const struct node *node;
} __attribute__((aligned(128)));

// A number of the report: a segment's runs after `from`, or (`index` not negative) the elements of
// an instruction in all threads.
struct record {
  struct segment *segment;
  int vtype;
  int64_t index;
  uint64_t number;
  const struct node *from;
  unsigned thread;
};

struct records {
  struct record *items;
  size_t count, room;
};

static struct vcpu vcpus[MAX_VCPUS];
static unsigned vcpu_count;
static struct segment *segments;
static uint64_t segment_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *out_path;
static unsigned line_bits;  // 0: no caches
static struct cache l1, l2;

static bool in_region;
static bool unbalanced;
static struct records records;
// Begin of each stretch in `records`; stretches alternate: outside marks, between marks.
static size_t *starts;
static size_t start_count, start_room;

static void *grown(void *items, size_t *room, size_t count, size_t size) {
  if (count < *room) return items;
  *room = *room ? 2 * *room : 1024;
  items = realloc(items, *room * size);
  if (!items) abort();
  return items;
}

static void *zeroed(size_t count, size_t size) {
  void *items = calloc(count, size);
  if (!items) abort();
  return items;
}

static void take(struct record record, uint64_t *number) {
  if (*number == 0) return;
  record.number = *number;
  record.segment->recorded = true;
  if (record.from) record.from->segment->recorded = true;
  records.items = grown(records.items, &records.room, records.count, sizeof(struct record));
  records.items[records.count++] = record;
  *number = 0;
}

static void take_runs(struct node *node) {
  for (struct edge *e = node->edges; e; e = e->next) {
    take((struct record){node->segment, node->vtype, INDEX_RUNS, 0, e->from, node->thread},
         &e->times);
  }
}

// Move all counts to the report. The caller holds the lock.
static void end_stretch(void) {
  starts = grown(starts, &start_room, start_count, sizeof(*starts));
  starts[start_count++] = records.count;
  for (struct segment *s = segments; s; s = s->next) {
    for (int v = 0; v < VTYPES; ++v) {
      for (struct node *n = s->nodes[v]; n; n = n->next) take_runs(n);
    }
    for (int t = 0; t < TRAFFIC; ++t) {
      take((struct record){.segment = s, .index = INDEX_TRAFFIC - t}, &s->traffic[t]);
    }
    for (struct access *a = s->accesses; a; a = a->next) {
      for (int v = 0; v < VTYPES; ++v) {
        take((struct record){.segment = s, .vtype = v, .index = (int64_t)a->index},
             &a->elements[v]);
      }
    }
  }
}

// All threads share a region: a thread that begins a region opens it for its helpers, too.
static void pass_mark(bool begin) {
  pthread_mutex_lock(&lock);
  if (in_region == begin) {
    unbalanced = true;
  } else {
    end_stretch();
    in_region = begin;
  }
  pthread_mutex_unlock(&lock);
}

static void bump(uint64_t *value) {
  if (vcpu_count > 1) {
    __atomic_fetch_add(value, 1, __ATOMIC_RELAXED);
  } else {
    *value += 1;
  }
}

static struct node *find_node(struct segment *segment, int vtype, unsigned thread) {
  struct node *node = __atomic_load_n(&segment->nodes[vtype], __ATOMIC_ACQUIRE);
  while (node && node->thread != thread) node = node->next;
  return node;
}

// Other threads may read the list while this thread adds a node at its head.
static struct node *node_of(struct segment *segment, int vtype, unsigned thread) {
  struct node *found = find_node(segment, vtype, thread);
  if (found) return found;
  found = zeroed(1, sizeof(*found));
  pthread_mutex_lock(&lock);
  *found = (struct node){segment->nodes[vtype], segment, vtype, thread, NULL};
  __atomic_store_n(&segment->nodes[vtype], found, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&lock);
  return found;
}

static struct edge *find_edge(struct node *node, const struct node *from) {
  struct edge *edge = __atomic_load_n(&node->edges, __ATOMIC_ACQUIRE);
  while (edge && edge->from != from) edge = edge->next;
  return edge;
}

// Only a node's own thread adds edges; a thread that passes a mark reads them.
static struct edge *edge_of(struct node *node, const struct node *from) {
  struct edge *found = find_edge(node, from);
  if (found) return found;
  found = zeroed(1, sizeof(*found));
  *found = (struct edge){node->edges, from, 0};
  __atomic_store_n(&node->edges, found, __ATOMIC_RELEASE);
  return found;
}

static void account(unsigned thread, struct segment *segment) {
  struct vcpu *cpu = &vcpus[thread];
  struct node *node = node_of(segment, segment->typed ? (int)cpu->vtype : 0, thread);
  bump(&edge_of(node, cpu->node)->times);
  cpu->entry = cpu->vtype;
  cpu->node = node;
  if (segment->sets) cpu->vtype = segment->vtype;
}

static void on_segment(unsigned int index, void *data) { account(index, data); }

static void write_report(void);

// The marks are outside of the region.
static void on_mark(unsigned int index, void *data) {
  struct segment *segment = data;
  if (segment->mark == MARK_END) pass_mark(false);
  account(index, segment);
  if (segment->mark == MARK_BEGIN) pass_mark(true);
  if (segment->mark == MARK_REPORT) write_report();
}

static void on_element(unsigned int index, qemu_plugin_meminfo_t info, uint64_t address,
                       void *data) {
  (void)info;
  (void)address;
  struct access *access = data;
  // QEMU before version 8 may call this for accesses in later blocks, if their instructions have no
  // callback.
  if (access->segment != vcpus[index].node->segment) return;
  bump(&access->elements[vcpus[index].entry]);
}

// A changed line that L1 evicts is written to L2, without counting a miss of L2.
static void touch(struct segment *segment, uint64_t number, bool write) {
  const struct eviction first = cache_access(&l1, number, write);
  if (first.hit) return;
  segment->traffic[MISSES_L1] += 1;
  struct eviction second = {true, false, 0};
  if (first.written_back) second = cache_access(&l2, first.number, true);
  segment->traffic[WRITTEN_BACK] += second.written_back;
  second = cache_access(&l2, number, false);
  segment->traffic[MISSES_L2] += !second.hit;
  segment->traffic[WRITTEN_BACK] += second.written_back;
}

// QEMU calls this for each element of a vector load or store.
static void on_access(unsigned int index, qemu_plugin_meminfo_t info, uint64_t address,
                      void *data) {
  (void)index;
  if (!in_region) return;
  const uint64_t last = address + (1u << qemu_plugin_mem_size_shift(info)) - 1;
  const bool write = qemu_plugin_mem_is_store(info);
  for (uint64_t line = address >> line_bits; line <= last >> line_bits; ++line) {
    touch(data, line, write);
  }
}

static struct segment *new_segment(uint64_t address, size_t room, enum kind mark) {
  struct segment *segment = zeroed(1, sizeof(*segment));
  segment->address = address;
  segment->mark = mark;
  segment->words = zeroed(room, sizeof(uint32_t));
  pthread_mutex_lock(&lock);
  segment->id = segment_count++;
  segment->next = segments;
  segments = segment;
  pthread_mutex_unlock(&lock);
  return segment;
}

static uint32_t word_of(const struct qemu_plugin_insn *insn) {
  const size_t size = qemu_plugin_insn_size(insn);
  uint32_t word = 0;
#if MLC_RVV_PLUGIN_API >= 3
  qemu_plugin_insn_data(insn, &word, size < sizeof(word) ? size : sizeof(word));
#else
  memcpy(&word, qemu_plugin_insn_data(insn), size < sizeof(word) ? size : sizeof(word));
#endif
  return word;
}

static void add_insn(struct segment *segment, struct qemu_plugin_insn *insn, uint32_t word,
                     struct decoded decoded) {
  if (decoded.kind == SETS_VTYPE) {
    segment->sets = true;
    segment->vtype = decoded.vtype;
  } else if (decoded.kind == VECTOR || decoded.kind == VECTOR_ELEMENTS) {
    segment->typed |= !segment->sets;
  }
  if (decoded.kind == VECTOR_ELEMENTS) {
    struct access *access = zeroed(1, sizeof(*access));
    access->segment = segment;
    access->index = segment->count;
    access->next = segment->accesses;
    segment->accesses = access;
    qemu_plugin_register_vcpu_mem_cb(insn, on_element, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW,
                                     access);
  }
  if (line_bits) {
    qemu_plugin_register_vcpu_mem_cb(insn, on_access, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW,
                                     segment);
  }
  segment->words[segment->count++] = word;
}

static bool is_mark(enum kind kind) { return kind >= MARK_BEGIN; }

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
  (void)id;
  const size_t count = qemu_plugin_tb_n_insns(tb);
  struct segment *segment = NULL;
  for (size_t i = 0; i < count; ++i) {
    struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
    const uint32_t word = word_of(insn);
    const struct decoded decoded = decode(word, (unsigned)qemu_plugin_insn_size(insn));
    const bool mark = is_mark(decoded.kind);
    if (segment == NULL || mark || is_mark(segment->mark)) {
      segment = new_segment(qemu_plugin_insn_vaddr(insn), count - i, mark ? decoded.kind : OTHER);
      qemu_plugin_register_vcpu_insn_exec_cb(insn, mark ? on_mark : on_segment,
                                             QEMU_PLUGIN_CB_NO_REGS, segment);
    }
    add_insn(segment, insn, word, decoded);
  }
}

static void on_vcpu(qemu_plugin_id_t id, unsigned int index) {
  (void)id;
  if (index >= MAX_VCPUS) {
    fprintf(stderr, "counter: more than %d threads\n", MAX_VCPUS);
    abort();
  }
  pthread_mutex_lock(&lock);
  vcpus[index].vtype = VTYPE_UNKNOWN;
  if (index >= vcpu_count) vcpu_count = index + 1;
  pthread_mutex_unlock(&lock);
}

static void print_segments(FILE *file) {
  const char *before = "";
  fprintf(file, "\"segments\":{");
  for (struct segment *s = segments; s; s = s->next) {
    if (!s->recorded) continue;
    s->recorded = false;
    fprintf(file, "%s\n\"%" PRIu64 "\":[%" PRIu64 ",\"", before, s->id, s->address);
    for (size_t i = 0; i < s->count; ++i) fprintf(file, i ? " %" PRIx32 : "%" PRIx32, s->words[i]);
    fprintf(file, "\"]");
    before = ",";
  }
  fprintf(file, "}");
}

static void print_stretch(FILE *file, size_t from, size_t to) {
  for (size_t i = from; i < to; ++i) {
    const struct record *r = &records.items[i];
    fprintf(file, "%s[%" PRIu64 ",%d,%" PRId64 ",%" PRIu64 ",%" PRId64 ",%d,%u]",
            i > from ? "," : "", r->segment->id, r->vtype, r->index, r->number,
            r->from ? (int64_t)r->from->segment->id : -1, r->from ? r->from->vtype : 0, r->thread);
  }
}

static void write_report(void) {
  FILE *file = fopen(out_path, "w");
  if (!file) {
    fprintf(stderr, "counter: cannot write %s\n", out_path);
    return;
  }
  pthread_mutex_lock(&lock);
  end_stretch();
  fprintf(file, "{\"threads\":%u,\"balanced\":%s,\n", vcpu_count,
          unbalanced || in_region ? "false" : "true");
  print_segments(file);
  fprintf(file, ",\n\"stretches\":[");
  for (size_t i = 0; i < start_count; ++i) {
    fprintf(file, i ? ",\n[" : "\n[");
    print_stretch(file, starts[i], i + 1 < start_count ? starts[i + 1] : records.count);
    fprintf(file, "]");
  }
  fprintf(file, "]}\n");
  fclose(file);
  start_count = 0;
  records.count = 0;
  pthread_mutex_unlock(&lock);
}

static void on_exit_of_guest(qemu_plugin_id_t id, void *data) {
  (void)id;
  (void)data;
  write_report();
}

static bool read_caches(const char *text) {
  unsigned line, ways1, ways2;
  uint64_t size1, size2;
  if (sscanf(text, "%u:%" SCNu64 ":%u:%" SCNu64 ":%u", &line, &size1, &ways1, &size2, &ways2) !=
      5) {
    return false;
  }
  for (line_bits = 0; line > 1 && line % 2 == 0; line /= 2) line_bits += 1;
  const unsigned bytes = 1u << line_bits;
  return line == 1 && line_bits && cache_make(&l1, size1, ways1, bytes) &&
         cache_make(&l2, size2, ways2, bytes);
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
    } else if (strncmp(argv[i], "caches=", 7) == 0) {
      if (!read_caches(argv[i] + 7)) {
        fprintf(stderr, "counter: %s: sizes do not divide into lines and ways\n", argv[i]);
        return -1;
      }
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
