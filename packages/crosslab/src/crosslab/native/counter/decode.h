// SPDX-License-Identifier: Apache-2.0
// The instructions that the counter decodes (RISC-V "V" extension 1.0): marks, vset*, and vector
// loads and stores with a cost per element. crosslab/run/decode.py decodes all other instructions
// from the words in the report.
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum kind {
  OTHER,
  VECTOR,           // depends on the vtype in force
  VECTOR_ELEMENTS,  // a strided, indexed or segment load or store
  SETS_VTYPE,
  MARK_BEGIN,
  MARK_END,
  MARK_REPORT,
};

// SEW and LMUL are vtype's lowest six bits. They are unknown after vsetvl, whose vtype is in a
// register that the counter does not read.
enum { VTYPES = 65, VTYPE_UNKNOWN = 64 };

struct decoded {
  enum kind kind;
  unsigned vtype;  // the new vtype of SETS_VTYPE
};

// HINTs: slti x0, x0, imm.
#define WORD_MARK_BEGIN 0x7c102013u
#define WORD_MARK_END 0x7c202013u
#define WORD_MARK_REPORT 0x7c302013u

static inline unsigned bits(uint32_t word, unsigned high, unsigned low) {
  return (word >> low) & ((1u << (high - low + 1)) - 1);
}

static inline struct decoded decode_set(uint32_t word) {
  const bool immediate = bits(word, 31, 31) == 0 || bits(word, 31, 30) == 3;
  return (struct decoded){SETS_VTYPE, immediate ? bits(word, 25, 20) : VTYPE_UNKNOWN};
}

static inline struct decoded decode_memory(uint32_t word) {
  const unsigned width = bits(word, 14, 12);
  if (width >= 1 && width <= 4) return (struct decoded){OTHER, 0};
  const bool unit_stride = bits(word, 27, 26) == 0;
  const bool whole_registers = unit_stride && bits(word, 24, 20) == 8;
  const bool segments = bits(word, 31, 29) != 0 && !whole_registers;
  return (struct decoded){unit_stride && !segments ? VECTOR : VECTOR_ELEMENTS, 0};
}

// `size` is 2 or 4 bytes; a compressed instruction is never a vector instruction.
static inline struct decoded decode(uint32_t word, unsigned size) {
  if (size != 4) return (struct decoded){OTHER, 0};
  if (word == WORD_MARK_BEGIN) return (struct decoded){MARK_BEGIN, 0};
  if (word == WORD_MARK_END) return (struct decoded){MARK_END, 0};
  if (word == WORD_MARK_REPORT) return (struct decoded){MARK_REPORT, 0};
  switch (word & 0x7f) {
    case 0x57: return bits(word, 14, 12) == 7 ? decode_set(word) : (struct decoded){VECTOR, 0};
    case 0x07:
    case 0x27: return decode_memory(word);
    case 0x77:  // vector crypto
      return (struct decoded){VECTOR, 0};
    default: return (struct decoded){OTHER, 0};
  }
}
