// SPDX-License-Identifier: Apache-2.0
#include "vta/functional.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using std::int32_t;
using std::int8_t;
using std::size_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

enum Opcode : uint32_t { kLoad, kStore, kGemm, kFinish, kAlu };
enum Memory : uint32_t { kMicroOp, kWeight, kInput, kSum, kOutput, kSum8 };
enum AluOp : uint32_t { kMin, kMax, kAdd, kShr, kMul };
enum Queue : uint32_t { kLoadQueue, kComputeQueue, kStoreQueue, kQueues };

constexpr const char* kQueueNames[] = {"LOAD", "COMPUTE", "STORE"};
constexpr size_t kInstructionBytes = 16;
constexpr uint32_t kMicroOpBytes = 4;
constexpr int32_t kMostShift = 31;

[[noreturn]] void Refuse(uint64_t index, const std::string& what) {
  throw std::runtime_error("instruction " + std::to_string(index) + ": " + what);
}

uint32_t Log2(uint32_t depth) { return std::bit_width(depth) - 1; }

struct Transfer {
  uint32_t memory, sram, dram, rows, columns, stride, above, below, left, right;
  uint64_t Pitch() const { return uint64_t{left} + columns + right; }
  uint64_t Elements() const { return columns ? Pitch() * (uint64_t{above} + rows + below) : 0; }
};

struct Loop {
  uint32_t begin, end, outer, inner, dst_outer, dst_inner, src_outer, src_inner;
  uint64_t Steps() const { return uint64_t{outer} * inner * (end - begin); }
};

struct Instruction {
  Opcode opcode;
  bool pop_prev, pop_next, push_prev, push_next;
  Transfer transfer;
  Loop loop;
  uint32_t wgt_outer, wgt_inner;
  bool reset, use_immediate;
  uint32_t op;
  int32_t immediate;

  Queue InQueue() const {
    if (opcode == kStore) return kStoreQueue;
    bool operand = transfer.memory == kInput || transfer.memory == kWeight;
    return opcode == kLoad && operand ? kLoadQueue : kComputeQueue;
  }
};

// The bit fields of an instruction, low bits first; a field lies within a 64-bit word.
class Fields {
 public:
  explicit Fields(const uint8_t* bytes) { std::memcpy(words_, bytes, kInstructionBytes); }

  uint32_t Take(uint32_t width) {
    if (at_ / 64 != (at_ + width - 1) / 64) at_ = 64;
    uint64_t mask = (uint64_t{1} << width) - 1;
    uint64_t& word = words_[at_ / 64];
    auto value = static_cast<uint32_t>(word >> at_ % 64 & mask);
    word &= ~(mask << at_ % 64);
    at_ += width;
    return value;
  }

  bool AnyLeft() const { return (words_[0] | words_[1]) != 0; }

 private:
  uint64_t words_[2];
  uint32_t at_ = 0;
};

static_assert(std::endian::native == std::endian::little, "instructions are little-endian");

Instruction Decode(uint64_t index, const uint8_t* bytes, const AcceleratorSpec& spec) {
  Fields fields(bytes);
  Instruction found{};
  uint32_t opcode = fields.Take(3);
  if (opcode > kAlu) Refuse(index, "unknown opcode " + std::to_string(opcode));
  found.opcode = static_cast<Opcode>(opcode);
  found.pop_prev = fields.Take(1);
  found.pop_next = fields.Take(1);
  found.push_prev = fields.Take(1);
  found.push_next = fields.Take(1);
  if (opcode == kLoad || opcode == kStore) {
    Transfer& t = found.transfer;
    t.memory = fields.Take(3);
    t.sram = fields.Take(16);
    t.dram = fields.Take(32);
    for (uint32_t* field : {&t.rows, &t.columns, &t.stride}) *field = fields.Take(16);
    for (uint32_t* field : {&t.above, &t.below, &t.left, &t.right}) *field = fields.Take(4);
    if (opcode == kLoad ? t.memory == kOutput || t.memory > kSum8 : t.memory != kOutput) {
      Refuse(index, "buffer " + std::to_string(t.memory) + " cannot be loaded or stored so");
    }
    if (opcode == kStore && (t.above || t.below || t.left || t.right)) {
      Refuse(index, "STORE with padding");
    }
  } else if (opcode != kFinish) {
    uint32_t micro = Log2(spec.micro_ops), sum = Log2(spec.sums), weight = Log2(spec.weights);
    uint32_t source = opcode == kAlu ? sum : Log2(spec.values);
    found.reset = fields.Take(1);
    Loop& loop = found.loop;
    loop.begin = fields.Take(micro);
    loop.end = fields.Take(micro + 1);
    loop.outer = fields.Take(14);
    loop.inner = fields.Take(14);
    loop.dst_outer = fields.Take(sum);
    loop.dst_inner = fields.Take(sum);
    loop.src_outer = fields.Take(source);
    loop.src_inner = fields.Take(source);
    if (loop.begin > loop.end || loop.end > spec.micro_ops) {
      Refuse(index, "micro-ops " + std::to_string(loop.begin) + " to " + std::to_string(loop.end) +
                        " of " + std::to_string(spec.micro_ops));
    }
    if (opcode == kGemm) {
      found.wgt_outer = fields.Take(weight);
      found.wgt_inner = fields.Take(weight);
    } else {
      found.op = fields.Take(3);
      found.use_immediate = fields.Take(1);
      found.immediate = static_cast<std::int16_t>(fields.Take(16));
      if (found.op > kMul) Refuse(index, "unknown operation " + std::to_string(found.op));
      if (found.reset) Refuse(index, "ALU has the bit of reset set, which is GEMM's");
      if (!found.use_immediate && found.immediate) Refuse(index, "an immediate that is not used");
      if (found.op == kShr && found.use_immediate && std::abs(found.immediate) > kMostShift) {
        Refuse(index, "SHR by " + std::to_string(found.immediate));
      }
    }
  }
  if (fields.AnyLeft()) Refuse(index, "bits are set where there is no field");
  Queue queue = found.InQueue();
  if (queue == kLoadQueue && (found.pop_prev || found.push_prev)) {
    Refuse(index, "no queue is before LOAD's to exchange tokens with");
  }
  if (queue == kStoreQueue && (found.pop_next || found.push_next)) {
    Refuse(index, "no queue is after STORE's to exchange tokens with");
  }
  return found;
}

// Adds the product of `batch` rows of values by weights to sums that wrap around. Template
// parameters give the compiler the sizes of VTA's block, which makes the loop four times as fast.
template <uint32_t kInputs, uint32_t kOutputs>
void MultiplyBlock(const AcceleratorSpec& spec, int32_t* sums, const int8_t* values,
                   const int8_t* weights) {
  const uint32_t inputs = kInputs ? kInputs : spec.inputs;
  const uint32_t outputs = kOutputs ? kOutputs : spec.outputs;
  for (uint32_t row = 0; row < spec.batch; ++row) {
    const int8_t* value = values + size_t{row} * inputs;
    for (uint32_t column = 0; column < outputs; ++column) {
      const int8_t* weight = weights + size_t{column} * inputs;
      int32_t sum = 0;
      for (uint32_t k = 0; k < inputs; ++k) sum += value[k] * weight[k];
      int32_t& total = sums[size_t{row} * outputs + column];
      total = static_cast<int32_t>(static_cast<uint32_t>(total) + static_cast<uint32_t>(sum));
    }
  }
}

class Device {
 public:
  explicit Device(const AcceleratorSpec& spec)
      : spec_(spec),
        micro_ops_(spec.micro_ops),
        weights_(size_t{spec.weights} * spec.inputs * spec.outputs),
        values_(size_t{spec.values} * spec.batch * spec.inputs),
        sums_(size_t{spec.sums} * Lanes()) {}

  void Run(uint8_t* dram, uint64_t dram_bytes, const uint8_t* stream, uint64_t count,
           uint32_t order, AcceleratorCounts* counts) {
    dram_ = dram;
    dram_bytes_ = dram_bytes;
    counts_ = counts;
    std::vector<Instruction> program;
    std::array<std::vector<uint64_t>, kQueues> queues;
    program.reserve(count);
    for (uint64_t n = 0; n < count; ++n) {
      program.push_back(Decode(n, stream + n * kInstructionBytes, spec_));
      if (program.back().opcode == kFinish && n + 1 < count) Refuse(n, "FINISH before the end");
      queues[program.back().InQueue()].push_back(n);
    }
    if (program.empty() || program.back().opcode != kFinish) {
      throw std::runtime_error("the stream does not end with FINISH");
    }
    Pump(program, queues, order);
  }

 private:
  size_t Lanes() const { return size_t{spec_.batch} * spec_.outputs; }

  // Runs each queue as far as its tokens allow, until all queues are done or none can continue.
  void Pump(const std::vector<Instruction>& program,
            const std::array<std::vector<uint64_t>, kQueues>& queues, uint32_t order) {
    std::array<uint32_t, kQueues> turn{kLoadQueue, kComputeQueue, kStoreQueue};
    for (uint32_t n = 0; n < order % 6; ++n) std::next_permutation(turn.begin(), turn.end());
    std::array<size_t, kQueues> next{};
    // tokens[q][0] come to queue q from the queue before, tokens[q][1] from the queue after.
    uint64_t tokens[kQueues][2] = {};
    for (bool moved = true; moved;) {
      moved = false;
      for (uint32_t q : turn) {
        while (next[q] < queues[q].size()) {
          uint64_t index = queues[q][next[q]];
          const Instruction& i = program[index];
          if ((i.pop_prev && !tokens[q][0]) || (i.pop_next && !tokens[q][1])) break;
          tokens[q][0] -= i.pop_prev;
          tokens[q][1] -= i.pop_next;
          Execute(index, i);
          ++counts_->instructions;
          if (i.push_prev) ++tokens[q - 1][1];
          if (i.push_next) ++tokens[q + 1][0];
          ++next[q];
          moved = true;
        }
      }
    }
    std::string waiting;
    for (uint32_t q = 0; q < kQueues; ++q) {
      if (next[q] == queues[q].size()) continue;
      const Instruction& i = program[queues[q][next[q]]];
      uint32_t from = i.pop_prev && !tokens[q][0] ? q - 1 : q + 1;
      waiting += std::string(waiting.empty() ? "" : "; ") + "instruction " +
                 std::to_string(queues[q][next[q]]) + " of " + kQueueNames[q] +
                 " waits for a token from " + kQueueNames[from];
    }
    if (!waiting.empty()) throw std::runtime_error("deadlock: " + waiting);
    for (uint32_t q = 0; q < kQueues; ++q) {
      for (uint32_t side : {0u, 1u}) {
        if (tokens[q][side]) {
          throw std::runtime_error(std::string("a token from ") +
                                   kQueueNames[side ? q + 1 : q - 1] + " to " + kQueueNames[q] +
                                   " is left over");
        }
      }
    }
  }

  void Execute(uint64_t index, const Instruction& i) {
    switch (i.opcode) {
      case kLoad: return Load(index, i.transfer);
      case kStore: return Store(index, i.transfer);
      case kGemm: return Gemm(index, i);
      case kAlu: return Alu(index, i);
      case kFinish: return;
    }
  }

  // Returns the first byte in DRAM of a transfer, whose elements have `element` bytes in DRAM.
  uint8_t* Address(uint64_t index, const Transfer& t, uint64_t element) const {
    uint64_t last = t.rows ? (uint64_t{t.rows} - 1) * t.stride + t.columns : 0;
    uint64_t end = (t.dram + last) * element;
    if (end > dram_bytes_) {
      Refuse(index, "address " + std::to_string(end) + " is outside of memory, which has " +
                        std::to_string(dram_bytes_) + " bytes");
    }
    return dram_ + t.dram * element;
  }

  static void CheckRange(uint64_t index, const char* buffer, uint64_t end, uint64_t depth) {
    if (end > depth) {
      Refuse(index, std::string(buffer) + " element " + std::to_string(end - 1) + " of " +
                        std::to_string(depth));
    }
  }

  // Fills a buffer of `depth` elements of `size` bytes with DRAM's elements of `element` bytes, of
  // which `read` converts a row.
  template <typename Read>
  void Fill(uint64_t index, const Transfer& t, const char* name, void* data, uint64_t depth,
            size_t size, size_t element, Read read) {
    CheckRange(index, name, t.sram + t.Elements(), depth);
    const uint8_t* from = Address(index, t, element);
    uint8_t* to = static_cast<uint8_t*>(data) + t.sram * size;
    std::memset(to, 0, t.Elements() * size);
    to += size * (t.Pitch() * t.above + t.left);
    for (uint32_t row = 0; row < t.rows; ++row) {
      read(to + size * t.Pitch() * row, from + element * t.stride * row);
    }
    counts_->read_bytes += uint64_t{t.rows} * t.columns * element;
  }

  void Load(uint64_t index, const Transfer& t) {
    if (!t.columns) return;
    auto copy = [&](const char* name, void* data, uint64_t depth, size_t size) {
      auto read = [&](uint8_t* to, const uint8_t* row) { std::memcpy(to, row, t.columns * size); };
      Fill(index, t, name, data, depth, size, size, read);
    };
    auto widen = [&](uint8_t* to, const uint8_t* row) {
      for (size_t n = 0; n < t.columns * Lanes(); ++n) {
        int32_t wide = static_cast<int8_t>(row[n]);
        std::memcpy(to + 4 * n, &wide, 4);
      }
    };
    size_t values = size_t{spec_.batch} * spec_.inputs;
    size_t block = size_t{spec_.inputs} * spec_.outputs;
    switch (t.memory) {
      case kMicroOp: return copy("micro-op", micro_ops_.data(), spec_.micro_ops, kMicroOpBytes);
      case kWeight: return copy("weight", weights_.data(), spec_.weights, block);
      case kInput: return copy("input", values_.data(), spec_.values, values);
      case kSum: return copy("accumulator", sums_.data(), spec_.sums, Lanes() * 4);
      default: Fill(index, t, "accumulator", sums_.data(), spec_.sums, Lanes() * 4, Lanes(), widen);
    }
  }

  // Stores the low byte of each sum in DRAM.
  void Store(uint64_t index, const Transfer& t) {
    if (!t.columns) return;
    CheckRange(index, "accumulator", t.sram + t.Elements(), spec_.sums);
    uint8_t* to = Address(index, t, Lanes());
    const int32_t* from = sums_.data() + t.sram * Lanes();
    for (uint32_t row = 0; row < t.rows; ++row) {
      uint8_t* target = to + size_t{t.stride} * row * Lanes();
      for (size_t n = 0; n < t.columns * Lanes(); ++n) target[n] = static_cast<uint8_t>(*from++);
    }
    counts_->written_bytes += uint64_t{t.rows} * t.columns * Lanes();
  }

  struct MicroOp {
    uint32_t dst, src, wgt;
  };

  // Returns a loop's micro-ops after checking that every iteration's indices are in the buffers.
  std::vector<MicroOp> MicroOps(uint64_t index, const Instruction& i, bool wgt, bool src) const {
    uint32_t sum = Log2(spec_.sums), value = std::max(sum, Log2(spec_.values));
    uint32_t weight = Log2(spec_.weights);
    const Loop& loop = i.loop;
    uint64_t outer = loop.outer - uint64_t{1}, inner = loop.inner - uint64_t{1};
    uint64_t sources = i.opcode == kAlu ? spec_.sums : spec_.values;
    std::vector<MicroOp> found;
    found.reserve(loop.end - loop.begin);
    for (uint32_t n = loop.begin; n < loop.end; ++n) {
      uint64_t word = micro_ops_[n];
      if (word >> (sum + value + weight)) {
        Refuse(index, "micro-op " + std::to_string(n) + " has bits of no field");
      }
      MicroOp op{static_cast<uint32_t>(word & (spec_.sums - 1)),
                 static_cast<uint32_t>(word >> sum & ((uint64_t{1} << value) - 1)),
                 static_cast<uint32_t>(word >> (sum + value))};
      CheckRange(index, "accumulator", op.dst + outer * loop.dst_outer + inner * loop.dst_inner + 1,
                 spec_.sums);
      if (src) {
        CheckRange(index, "source", op.src + outer * loop.src_outer + inner * loop.src_inner + 1,
                   sources);
      }
      if (wgt) {
        CheckRange(index, "weight", op.wgt + outer * i.wgt_outer + inner * i.wgt_inner + 1,
                   spec_.weights);
      }
      found.push_back(op);
    }
    return found;
  }

  template <typename Step>
  static void ForEach(const Instruction& i, const std::vector<MicroOp>& micro_ops, Step step) {
    const Loop& loop = i.loop;
    for (uint32_t y = 0; y < loop.outer; ++y) {
      for (uint32_t x = 0; x < loop.inner; ++x) {
        size_t dst = size_t{y} * loop.dst_outer + size_t{x} * loop.dst_inner;
        size_t src = size_t{y} * loop.src_outer + size_t{x} * loop.src_inner;
        size_t wgt = size_t{y} * i.wgt_outer + size_t{x} * i.wgt_inner;
        for (const MicroOp& op : micro_ops) step(op.dst + dst, op.src + src, op.wgt + wgt);
      }
    }
  }

  void Gemm(uint64_t index, const Instruction& i) {
    if (!i.loop.Steps()) return;
    std::vector<MicroOp> micro_ops = MicroOps(index, i, !i.reset, !i.reset);
    if (i.reset) {
      ForEach(i, micro_ops, [&](size_t dst, size_t, size_t) {
        std::fill_n(sums_.begin() + dst * Lanes(), Lanes(), 0);
      });
      counts_->reset_steps += i.loop.Steps();
      return;
    }
    bool usual = spec_.inputs == 16 && spec_.outputs == 16;
    auto multiply = usual ? MultiplyBlock<16, 16> : MultiplyBlock<0, 0>;
    size_t row = size_t{spec_.batch} * spec_.inputs, block = size_t{spec_.inputs} * spec_.outputs;
    ForEach(i, micro_ops, [&](size_t dst, size_t src, size_t wgt) {
      multiply(spec_, &sums_[dst * Lanes()], &values_[src * row], &weights_[wgt * block]);
    });
    counts_->gemm_steps += i.loop.Steps();
  }

  void Alu(uint64_t index, const Instruction& i) {
    if (!i.loop.Steps()) return;
    std::vector<MicroOp> micro_ops = MicroOps(index, i, false, !i.use_immediate);
    ForEach(i, micro_ops, [&](size_t dst, size_t src, size_t) {
      for (size_t n = 0; n < Lanes(); ++n) {
        int32_t right = i.use_immediate ? i.immediate : sums_[src * Lanes() + n];
        int32_t& left = sums_[dst * Lanes() + n];
        left = Apply(index, i.op, left, right);
      }
    });
    counts_->alu_steps += i.loop.Steps();
  }

  static int32_t Apply(uint64_t index, uint32_t op, int32_t left, int32_t right) {
    auto a = static_cast<uint32_t>(left), b = static_cast<uint32_t>(right);
    switch (op) {
      case kMin: return std::min(left, right);
      case kMax: return std::max(left, right);
      case kAdd: return static_cast<int32_t>(a + b);
      case kMul: return static_cast<int32_t>(a * b);
      default: break;
    }
    if (right > kMostShift || right < -kMostShift) {
      Refuse(index, "SHR by " + std::to_string(right));
    }
    return right < 0 ? static_cast<int32_t>(a << -right) : left >> right;
  }

  AcceleratorSpec spec_;
  std::vector<uint32_t> micro_ops_;
  std::vector<int8_t> weights_, values_;
  std::vector<int32_t> sums_;
  uint8_t* dram_ = nullptr;
  uint64_t dram_bytes_ = 0;
  AcceleratorCounts* counts_ = nullptr;
};

}  // namespace

void* accelerator_create(const AcceleratorSpec* spec) {
  try {
    return new Device(*spec);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void accelerator_destroy(void* device) { delete static_cast<Device*>(device); }

int accelerator_run(void* device, uint8_t* dram, uint64_t dram_bytes, const uint8_t* stream,
                    uint64_t count, uint32_t order, AcceleratorCounts* counts, char* message,
                    size_t message_bytes) {
  try {
    static_cast<Device*>(device)->Run(dram, dram_bytes, stream, count, order, counts);
    return 0;
  } catch (const std::exception& error) {
    std::snprintf(message, message_bytes, "%s", error.what());
    return 1;
  }
}
