// SPDX-License-Identifier: Apache-2.0
// Integer products on a device: int8 values by the transpose of int8 weights in its memory.
#ifndef MLC_RVV_ACCELERATORS_RUNTIME_PRODUCTS_H_
#define MLC_RVV_ACCELERATORS_RUNTIME_PRODUCTS_H_

#include <cstdint>
#include <map>

#include "runtime/device.h"
#include "runtime/record.h"

namespace accelerator {

// Rounds a row to int8, ties to even; gives the scale by which it was divided.
// Throws DeviceError, which names `what`, where a number is not finite.
float Quantise(const float* row, std::uint64_t count, std::int8_t* to, const char* what);

class Products {
 public:
  // Throws DeviceError when the image is none of a device.
  explicit Products(const AcceleratorImage& image);

  // Throws DeviceError where no program of that size was linked in.
  const AcceleratorLayer& LayerOf(std::uint64_t outputs, std::uint64_t inputs) const;

  // Room for a layer's weights in tiles, zeros. Throws DeviceError when memory is full.
  Buffer AllocateWeights(const AcceleratorLayer& layer);
  // Place of a weight in the tiles, in bytes.
  std::uint64_t WeightAt(const AcceleratorLayer& layer, std::uint64_t output,
                         std::uint64_t input) const;

  // sums [rows, outputs] = values [rows, inputs] by the transpose of the weights.
  // Throws DeviceError with the device's message.
  void Multiply(const AcceleratorLayer& layer, const Buffer& weights, const std::int8_t* values,
                std::uint64_t rows, std::int32_t* sums);

  const AcceleratorImage& image() const { return image_; }
  Device& device() { return device_; }
  Record& record() { return record_; }

 private:
  struct Part;

  Buffer MicroOpsOf(const AcceleratorProgram& program);
  void Collect(const Part& part, const AcceleratorLayer& layer, std::int32_t* sums) const;

  const AcceleratorImage& image_;
  Device device_;
  Stream stream_;
  Record record_;
  std::map<const AcceleratorProgram*, Buffer> micro_ops_;
};

}  // namespace accelerator

#endif  // MLC_RVV_ACCELERATORS_RUNTIME_PRODUCTS_H_
