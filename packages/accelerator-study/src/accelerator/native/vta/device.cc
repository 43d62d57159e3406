// SPDX-License-Identifier: Apache-2.0
#include "vta/device.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

namespace accelerator {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kInstructionBytes = 16;
constexpr std::size_t kMessageBytes = 512;
// LOAD and STORE: opcode (3 bits), tokens (4), buffer (3), on-chip address (16), DRAM address (32).
constexpr std::uint64_t kOpcodeMask = 7;
constexpr unsigned kMemoryShift = 7, kDramShift = 26;
constexpr std::uint64_t kDramMask = 0xffffffff;
enum Opcode : std::uint64_t { kLoad, kStore };
enum Memory : std::uint64_t { kMicroOp, kWeight, kInput, kSum, kOutput };

// Bytes in DRAM of an element of each buffer.
std::uint64_t ElementBytes(const AcceleratorSpec& spec, std::uint64_t memory) {
  switch (memory) {
    case kMicroOp: return 4;
    case kWeight: return std::uint64_t{spec.outputs} * spec.inputs;
    case kInput: return std::uint64_t{spec.batch} * spec.inputs;
    default: return std::uint64_t{spec.batch} * spec.outputs;
  }
}

void CheckSpec(const AcceleratorSpec& spec, std::uint64_t memory_bytes) {
  for (std::uint32_t size : {spec.batch, spec.inputs, spec.outputs, spec.micro_ops, spec.weights,
                             spec.values, spec.sums}) {
    if (!std::has_single_bit(size) || size > 1u << 16) {
      throw DeviceError("no device has a block or a buffer of " + std::to_string(size) +
                        " elements: powers of two up to 65536");
    }
  }
  if (memory_bytes < 2 * kPage) throw DeviceError("no device has so little memory");
}

void Add(const AcceleratorCounts& counts, AcceleratorCounts* to) {
  to->micro_op_bytes += counts.micro_op_bytes;
  to->weight_bytes += counts.weight_bytes;
  to->input_bytes += counts.input_bytes;
  to->sum_bytes += counts.sum_bytes;
  to->output_bytes += counts.output_bytes;
  to->gemm_steps += counts.gemm_steps;
  to->reset_steps += counts.reset_steps;
  to->alu_steps += counts.alu_steps;
}

}  // namespace

Device::Device(const AcceleratorSpec& spec, std::uint64_t memory_bytes)
    : spec_(spec), bytes_(memory_bytes) {
  CheckSpec(spec, memory_bytes);
  grain_ = kPage;
  for (std::uint64_t m : {kWeight, kInput, kOutput}) {
    grain_ = std::max(grain_, ElementBytes(spec, m));
  }
  used_ = grain_;  // address 0 means "no buffer"
  // The kernel allocates a page at its first access; a run accesses few pages of the memory.
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw DeviceError("no room for the device's memory of " + std::to_string(bytes_) + " bytes");
  }
  memory_ = static_cast<std::uint8_t*>(memory);
  simulator_ = accelerator_create(&spec_);
  if (simulator_ == nullptr) {
    munmap(memory_, bytes_);
    throw DeviceError("no room for the device's buffers");
  }
}

Device::~Device() {
  accelerator_destroy(simulator_);
  munmap(memory_, bytes_);
}

Buffer Device::Allocate(std::uint64_t bytes) {
  const std::uint64_t room = bytes_ - used_;
  if (bytes > room || (bytes + grain_ - 1) / grain_ * grain_ > room) {
    throw DeviceError("the device's memory is full: " + std::to_string(bytes) +
                      " bytes are wanted, " + std::to_string(room) + " of " +
                      std::to_string(bytes_) + " are free");
  }
  const Buffer allocated{used_, bytes};
  used_ += (bytes + grain_ - 1) / grain_ * grain_;
  return allocated;
}

void Device::Write(const Buffer& to, const void* from, std::uint64_t bytes, std::uint64_t offset) {
  if (offset > to.bytes || bytes > to.bytes - offset) {
    throw DeviceError(std::to_string(bytes) + " bytes do not fit a buffer of " +
                      std::to_string(to.bytes));
  }
  std::memcpy(memory_ + to.at + offset, from, bytes);
}

void Device::Read(const Buffer& from, void* to, std::uint64_t bytes) const {
  if (bytes > from.bytes) {
    throw DeviceError("a buffer of " + std::to_string(from.bytes) + " bytes has no " +
                      std::to_string(bytes));
  }
  std::memcpy(to, memory_ + from.at, bytes);
}

std::vector<std::uint8_t> Device::Relocated(const AcceleratorProgram& program,
                                            const Operands& operands) const {
  const std::uint64_t bytes = program.instructions * kInstructionBytes;
  std::vector<std::uint8_t> relocated(program.stream, program.stream + bytes);
  for (std::uint64_t at = 0; at < bytes; at += kInstructionBytes) {
    std::uint64_t word;
    std::memcpy(&word, &relocated[at], sizeof(word));
    const std::uint64_t opcode = word & kOpcodeMask, memory = word >> kMemoryShift & 7;
    if (opcode != kLoad && opcode != kStore) continue;
    std::uint64_t from, to;
    switch (memory) {
      case kMicroOp: from = program.micro_ops_at, to = operands.micro_ops.at; break;
      case kWeight: from = program.weights_at, to = operands.weights.at; break;
      case kInput: from = program.values_at, to = operands.values.at; break;
      case kOutput: from = program.results_at, to = operands.results.at; break;
      default:
        throw DeviceError("instruction " + std::to_string(at / kInstructionBytes) +
                          " moves to or from buffer " + std::to_string(memory) +
                          ", for which there is no operand");
    }
    const std::uint64_t element = ElementBytes(spec_, memory);
    const std::uint64_t old = word >> kDramShift & kDramMask;
    // Both addresses are multiples of the element: modulo 2^64 the difference may be below zero.
    const std::uint64_t address = old + to / element - from / element;
    if (from % element || to % element || address > kDramMask) {
      throw DeviceError("address " + std::to_string(to) + " is not an address that instruction " +
                        std::to_string(at / kInstructionBytes) + " can name");
    }
    word = (word & ~(kDramMask << kDramShift)) | address << kDramShift;
    std::memcpy(&relocated[at], &word, sizeof(word));
  }
  return relocated;
}

void Device::Run(const AcceleratorProgram& program, const Operands& operands) {
  const std::vector<std::uint8_t> stream = Relocated(program, operands);
  char message[kMessageBytes];
  AcceleratorCounts counts;
  if (accelerator_run(simulator_, memory_, bytes_, stream.data(), program.instructions, 0, &counts,
                      message, kMessageBytes)) {
    throw DeviceError(message);
  }
  Add(counts, &counts_);
  instructions_ += program.instructions;
}

}  // namespace accelerator
