// SPDX-License-Identifier: Apache-2.0
// Driver of an accelerator with VTA's instruction set: memory, buffers, streams. The device behind
// it is the functional simulator, which has memory of its own; the host copies in and out.
#ifndef MLC_RVV_ACCELERATORS_VTA_DEVICE_H_
#define MLC_RVV_ACCELERATORS_VTA_DEVICE_H_

#include <cstdint>
#include <vector>

#include "runtime/products.h"
#include "vta/functional.h"

namespace accelerator {

class Device {
 public:
  // Throws DeviceError when the description is wrong, or memory cannot be allocated.
  Device(const AcceleratorSpec& spec, std::uint64_t memory_bytes);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const AcceleratorSpec& spec() const { return spec_; }

  // A buffer behind all others, at an address that every kind of transfer can name.
  // Throws DeviceError when memory is full.
  Buffer Allocate(std::uint64_t bytes);
  // Where the next buffer will be; and back to there: buffers from that address on are gone.
  std::uint64_t Mark() const { return used_; }
  void Release(std::uint64_t mark) { used_ = mark; }

  // Copies between the host and a buffer. Throw DeviceError where it is not that large.
  void Write(const Buffer& to, const void* from, std::uint64_t bytes, std::uint64_t offset = 0);
  void Read(const Buffer& from, void* to, std::uint64_t bytes) const;

  // Runs instructions to their end. Throws DeviceError with the device's message.
  void Run(const std::uint8_t* stream, std::uint64_t count);

  // Of all runs so far.
  const AcceleratorCounts& counts() const { return counts_; }
  std::uint64_t instructions() const { return instructions_; }

 private:
  AcceleratorSpec spec_;
  std::uint64_t bytes_;
  std::uint64_t grain_;
  std::uint64_t used_;
  std::uint8_t* memory_ = nullptr;
  void* simulator_ = nullptr;
  AcceleratorCounts counts_{};
  std::uint64_t instructions_ = 0;
};

// Buffers that a program's transfers are about.
struct Operands {
  Buffer micro_ops, weights, values, results;
};

// Programs that run one after the other. They begin when somebody waits for them: a simulator
// gains nothing by running earlier.
class Stream {
 public:
  explicit Stream(Device* device) : device_(device) {}

  // Appends a program with its transfers moved to these buffers.
  // Throws DeviceError where a buffer is not at an address that they can be moved to.
  void Launch(const AcceleratorProgram& program, const Operands& operands);
  // Runs what was launched, and waits for its end. Throws DeviceError with the device's message;
  // what comes after the fault is dropped.
  void Synchronise();

 private:
  Device* device_;
  std::vector<std::vector<std::uint8_t>> launched_;
};

}  // namespace accelerator

#endif  // MLC_RVV_ACCELERATORS_VTA_DEVICE_H_
