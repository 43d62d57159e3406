// SPDX-License-Identifier: Apache-2.0
// What an instruction costs, from its encoding (RISC-V "V" extension 1.0).
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum kind {
  SCALAR,
  VECTOR,         // works at the LMUL that is set
  VECTOR_WHOLE,   // names its number of registers itself
  SET_IMMEDIATE,  // vsetvli, vsetivli: the new vtype is in the encoding
  SET_REGISTER,   // vsetvl: the new vtype is in a register, which is not looked at
  MARK_BEGIN,
  MARK_END,
};

struct decoded {
  enum kind kind;
  bool memory;
  // VECTOR_WHOLE: registers moved; SET_IMMEDIATE: the new LMUL, 1 if it is a fraction.
  unsigned registers;
};

// HINTs: slti x0, x0, imm.
#define WORD_MARK_BEGIN 0x7c102013u
#define WORD_MARK_END 0x7c202013u

static inline unsigned bits(uint32_t word, unsigned high, unsigned low) {
  return (word >> low) & ((1u << (high - low + 1)) - 1);
}

static inline unsigned lmul_of(uint32_t vtype) {
  const unsigned field = vtype & 7;
  return field < 4 ? 1u << field : 1;
}

static inline struct decoded decode_set(uint32_t word) {
  if (bits(word, 31, 31) == 0) {
    return (struct decoded){SET_IMMEDIATE, false, lmul_of(bits(word, 30, 20))};
  }
  if (bits(word, 31, 30) == 3) {
    return (struct decoded){SET_IMMEDIATE, false, lmul_of(bits(word, 29, 20))};
  }
  return (struct decoded){SET_REGISTER, false, 0};
}

static inline struct decoded decode_op_v(uint32_t word) {
  const unsigned funct3 = bits(word, 14, 12);
  if (funct3 == 7) return decode_set(word);
  // vmv1r.v to vmv8r.v: funct6 100111, unmasked, in the immediate format.
  if (funct3 == 3 && bits(word, 31, 25) == 0x4f) {
    return (struct decoded){VECTOR_WHOLE, false, bits(word, 19, 15) + 1};
  }
  return (struct decoded){VECTOR, false, 0};
}

static inline struct decoded decode_memory(uint32_t word) {
  const unsigned width = bits(word, 14, 12);
  if (width >= 1 && width <= 4) return (struct decoded){SCALAR, false, 0};
  const bool unit_stride = bits(word, 27, 26) == 0;
  if (unit_stride && bits(word, 24, 20) == 8) {
    return (struct decoded){VECTOR_WHOLE, true, bits(word, 31, 29) + 1};
  }
  return (struct decoded){VECTOR, true, 0};
}

// `size` is 2 or 4 bytes; a compressed instruction is never a vector instruction.
static inline struct decoded decode(uint32_t word, unsigned size) {
  if (size != 4) return (struct decoded){SCALAR, false, 0};
  if (word == WORD_MARK_BEGIN) return (struct decoded){MARK_BEGIN, false, 0};
  if (word == WORD_MARK_END) return (struct decoded){MARK_END, false, 0};
  switch (word & 0x7f) {
    case 0x57:
      return decode_op_v(word);
    case 0x07:
    case 0x27:
      return decode_memory(word);
    case 0x77:  // vector crypto
      return (struct decoded){VECTOR, false, 0};
    default:
      return (struct decoded){SCALAR, false, 0};
  }
}
