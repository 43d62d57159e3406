// SPDX-License-Identifier: Apache-2.0
#include "extension/functional.h"

#include <array>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using std::int32_t;
using std::int64_t;
using std::int8_t;
using std::size_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

constexpr uint32_t kRegisters = 32;
constexpr uint32_t kWordBytes = 4;
constexpr uint32_t kE8M1 = 0b11'000'000, kE32M2 = 0b11'010'001;

// Returns bits [low, low + width) of a word.
constexpr uint32_t Field(uint32_t word, uint32_t low, uint32_t width) {
  return word >> low & ((1u << width) - 1);
}

constexpr int64_t SignExtend(uint32_t value, uint32_t width) {
  uint32_t sign = 1u << (width - 1);
  return static_cast<int64_t>(value ^ sign) - sign;
}

// The size of a product: rows x rows sums, each over `inputs` values.
struct Block {
  size_t rows, inputs;
};

Block BlockOf(uint32_t vlen) {
  switch (vlen) {
    case 256: return {4, 8};
    case 1024: return {8, 16};
    case 4096: return {16, 32};
  }
  throw std::invalid_argument("registers of " + std::to_string(vlen) + " bits");
}

class Core {
 public:
  Core(uint32_t vlen, uint8_t* memory, uint64_t bytes, AcceleratorCounts* counts)
      : block_(BlockOf(vlen)),
        width_(vlen / 8),
        vectors_(kRegisters * width_),
        memory_(memory),
        bytes_(bytes),
        counts_(*counts) {}

  void Run(const uint8_t* words, uint64_t count, uint64_t most) {
    uint64_t at = 0, done = 0;
    while (true) {
      try {
        if (at >= count) throw std::runtime_error("it is behind the last instruction");
        if (done++ == most) throw std::runtime_error("no end is in sight");
        uint32_t word;
        std::memcpy(&word, words + at * kWordBytes, kWordBytes);
        counts_.instructions++;
        if (!Step(word, &at)) return;
      } catch (const std::exception& error) {
        throw std::runtime_error("instruction " + std::to_string(at) + ": " + error.what());
      }
    }
  }

 private:
  // Executes an instruction and advances `at`; returns false for the program's return.
  bool Step(uint32_t word, uint64_t* at) {
    uint32_t rd = Field(word, 7, 5), rs1 = Field(word, 15, 5), high = word >> 25;
    // The bits that distinguish instructions: without the fields of registers and immediates.
    uint32_t kind = word & 0x707F;
    if (word == 0x8067) return false;  // ret
    int64_t next = static_cast<int64_t>(*at) + 1;
    if ((word & 0x7F) == 0x37) {  // lui
      Set(rd, SignExtend(word >> 12, 20) * 4096);
    } else if (kind == 0x13) {  // addi
      Set(rd, scalars_[rs1] + SignExtend(word >> 20, 12));
    } else if (kind == 0x1063 && !Field(word, 20, 5)) {  // bne rs1, zero
      uint32_t offset = Field(word, 31, 1) << 12 | Field(word, 7, 1) << 11 |
                        Field(word, 25, 6) << 5 | Field(word, 8, 4) << 1;
      if (offset % kWordBytes) throw std::runtime_error("a branch into an instruction");
      if (scalars_[rs1]) next = static_cast<int64_t>(*at) + SignExtend(offset, 13) / 4;
      if (next < 0) throw std::runtime_error("a branch to before the first instruction");
    } else if (kind == 0x7057 && !(word >> 31) && !rs1 && rd) {  // vsetvli rd, zero
      uint32_t type = Field(word, 20, 11);
      if (type != kE8M1 && type != kE32M2) Unknown(word);
      type_ = type;
      Set(rd, static_cast<int64_t>(type == kE8M1 ? width_ : width_ / 2));
    } else if (kind == 0x3057 && high == 0b0101111 && !Field(word, 15, 10)) {  // vmv.v.i vd, 0
      std::memset(Sums(rd), 0, 2 * width_);
    } else if (kind == 0x07 && high == 1 && !Field(word, 20, 5)) {  // vle8.v
      Need(kE8M1);
      std::memcpy(Vector(rd), Memory(scalars_[rs1], width_), width_);
      counts_.read_bytes += width_;
    } else if (kind == 0x6027 && high == 1 && !Field(word, 20, 5)) {  // vse32.v
      const uint8_t* sums = Sums(rd);
      std::memcpy(Memory(scalars_[rs1], 2 * width_), sums, 2 * width_);
      counts_.written_bytes += 2 * width_;
    } else if (kind == 0x302B && high == 0b1110001) {  // vmadot
      Need(kE8M1);
      if (rd % 2) throw std::runtime_error("sums of vmadot begin at an odd register");
      Multiply(rd, Vector(rs1), Vector(Field(word, 20, 5)));
      counts_.gemm_steps++;
    } else {
      Unknown(word);
    }
    *at = static_cast<uint64_t>(next);
    return true;
  }

  void Multiply(uint32_t vd, const uint8_t* values, const uint8_t* weights) {
    uint8_t* sums = vectors_.data() + vd * width_;
    for (size_t row = 0; row < block_.rows; ++row) {
      for (size_t column = 0; column < block_.rows; ++column) {
        int32_t product = 0;
        for (size_t n = 0; n < block_.inputs; ++n) {
          product += static_cast<int8_t>(values[row * block_.inputs + n]) *
                     static_cast<int8_t>(weights[column * block_.inputs + n]);
        }
        // Sums wrap around as in the unit; C++ defines that for unsigned integers only.
        uint32_t sum;
        uint8_t* at = sums + 4 * (row * block_.rows + column);
        std::memcpy(&sum, at, sizeof sum);
        sum += static_cast<uint32_t>(product);
        std::memcpy(at, &sum, sizeof sum);
      }
    }
  }

  void Set(uint32_t rd, int64_t value) {
    if (rd) scalars_[rd] = value;
  }

  uint8_t* Vector(uint32_t index) { return vectors_.data() + index * width_; }

  // Returns the two registers of a group; the vector type must be E32, M2.
  uint8_t* Sums(uint32_t index) {
    Need(kE32M2);
    if (index % 2) throw std::runtime_error("a group of two begins at an odd register");
    return Vector(index);
  }

  uint8_t* Memory(int64_t address, uint64_t length) {
    if (address < 0 || static_cast<uint64_t>(address) > bytes_ ||
        length > bytes_ - static_cast<uint64_t>(address)) {
      throw std::runtime_error("address " + std::to_string(address) + " is outside of memory");
    }
    return memory_ + address;
  }

  void Need(uint32_t type) const {
    if (type_ != type) throw std::runtime_error("the type of vectors is another one");
  }

  [[noreturn]] static void Unknown(uint32_t word) {
    char text[32];
    std::snprintf(text, sizeof text, "unknown word 0x%08x", word);
    throw std::runtime_error(text);
  }

  Block block_;
  size_t width_;
  std::array<int64_t, kRegisters> scalars_{};
  std::vector<uint8_t> vectors_;
  uint32_t type_ = ~0u;
  uint8_t* memory_;
  uint64_t bytes_;
  AcceleratorCounts& counts_;
};

}  // namespace

int extension_run(uint32_t vlen, uint8_t* memory, uint64_t memory_bytes, const uint8_t* words,
                  uint64_t count, uint64_t most, AcceleratorCounts* counts, char* message,
                  size_t message_bytes) {
  try {
    Core(vlen, memory, memory_bytes, counts).Run(words, count, most);
    return 0;
  } catch (const std::exception& error) {
    std::snprintf(message, message_bytes, "%s", error.what());
    return 1;
  }
}
