// SPDX-License-Identifier: Apache-2.0
// Driver of an accelerator with VTA's instruction set: memory, buffers, programs. The functional
// simulator runs the instructions on memory of its own; the host copies data in and out.
#ifndef MLC_RVV_ACCELERATORS_VTA_DEVICE_H_
#define MLC_RVV_ACCELERATORS_VTA_DEVICE_H_

#include <cstdint>
#include <vector>

#include "runtime/products.h"
#include "vta/functional.h"

namespace accelerator {

// The buffers that a program's transfers read and write.
struct Operands {
  Buffer micro_ops, weights, values, results;
};

class Device {
 public:
  // Throws DeviceError if `spec` is wrong, or the memory cannot be allocated.
  Device(const AcceleratorSpec& spec, std::uint64_t memory_bytes);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const AcceleratorSpec& spec() const { return spec_; }

  // Returns a new buffer behind all others, aligned for every kind of transfer.
  // Throws DeviceError if memory is full.
  Buffer Allocate(std::uint64_t bytes);
  // Mark returns the address of the next buffer; Release frees the buffers from that address on.
  std::uint64_t Mark() const { return used_; }
  void Release(std::uint64_t mark) { used_ = mark; }

  // Copy between the host and a buffer. Throw DeviceError if the buffer is too small.
  void Write(const Buffer& to, const void* from, std::uint64_t bytes, std::uint64_t offset = 0);
  void Read(const Buffer& from, void* to, std::uint64_t bytes) const;

  // Runs a program with its transfers relocated to the operands' buffers. Throws DeviceError if a
  // transfer cannot encode a buffer's address, or with the device's message.
  void Run(const AcceleratorProgram& program, const Operands& operands);

  // Counters and instructions of all runs so far.
  const AcceleratorCounts& counts() const { return counts_; }
  std::uint64_t instructions() const { return instructions_; }

 private:
  // Returns the program's stream with the operands' addresses.
  std::vector<std::uint8_t> Relocated(const AcceleratorProgram& program,
                                      const Operands& operands) const;

  AcceleratorSpec spec_;
  std::uint64_t bytes_;
  std::uint64_t grain_;
  std::uint64_t used_;
  std::uint8_t* memory_ = nullptr;
  void* simulator_ = nullptr;
  AcceleratorCounts counts_{};
  std::uint64_t instructions_ = 0;
};

}  // namespace accelerator

#endif  // MLC_RVV_ACCELERATORS_VTA_DEVICE_H_
