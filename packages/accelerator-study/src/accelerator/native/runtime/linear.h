// SPDX-License-Identifier: Apache-2.0
// Linear layers on a device: int8 weights with a scale for each output channel, int8 values with a
// scale for each row. The device returns exact sums; the host multiplies them by both scales.
#ifndef MLC_RVV_ACCELERATORS_RUNTIME_LINEAR_H_
#define MLC_RVV_ACCELERATORS_RUNTIME_LINEAR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "runtime/products.h"

namespace accelerator {

class LinearLayers {
 public:
  explicit LinearLayers(Products* products) : products_(products) {}

  // Rounds weights [outputs, inputs] and copies them to the device under the name `key`.
  // Throws DeviceError if the image has no program of that size, memory is full, or a weight is not
  // finite.
  void Load(const void* key, const float* weights, std::uint64_t outputs, std::uint64_t inputs);
  // Copies int8 weights to the device like Load; each row is followed by its scale as float32.
  void LoadInt8(const void* key, const std::int8_t* rows, std::uint64_t outputs,
                std::uint64_t inputs);

  // Computes out [rows, outputs] = values [rows, inputs] by the transpose of the weights of a key.
  // A row of values that are not all finite gives a row of NaN.
  // Throws DeviceError if no weights of that key and size were loaded, or with the device's message.
  void Multiply(const void* key, const float* values, float* out, std::uint64_t rows,
                std::uint64_t outputs, std::uint64_t inputs);

 private:
  struct Resident {
    const AcceleratorLayer* layer;
    Memory memory;
    std::vector<float> scales;
  };

  // Writes the int8 weights of an output to `to`, and returns their scale.
  using Row = std::function<float(std::uint64_t output, std::int8_t* to)>;

  void LoadRows(const void* key, const Row& row_of, std::uint64_t outputs, std::uint64_t inputs);

  Products* products_;
  std::map<const void*, Resident> resident_;
};

}  // namespace accelerator

#endif  // MLC_RVV_ACCELERATORS_RUNTIME_LINEAR_H_
