// SPDX-License-Identifier: Apache-2.0
// Linear layers on a device: weights in int8 with a scale for each output channel, values in int8
// with one for each row. Sums leave the device as they are; the host multiplies by both scales.
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

  // Takes weights [outputs, inputs] to the device; `key` names them later.
  // Throws DeviceError where there is no program of that size, or no memory, or a weight is no
  // finite number.
  void Load(const void* key, const float* weights, std::uint64_t outputs, std::uint64_t inputs);
  // The same with weights that are int8 already: each row is followed by the float32 of its scale.
  void LoadInt8(const void* key, const std::int8_t* rows, std::uint64_t outputs,
                std::uint64_t inputs);

  // out [rows, outputs] = values [rows, inputs] by the transpose of the weights of a key.
  // Throws DeviceError where no weights of that key and size were loaded, where a value is no
  // finite number, and with the device's own message.
  void Multiply(const void* key, const float* values, float* out, std::uint64_t rows,
                std::uint64_t outputs, std::uint64_t inputs);

 private:
  struct Resident {
    const AcceleratorLayer* layer;
    Buffer weights;
    std::vector<float> scales;
  };

  // Gives a row of int8 weights, to be written to, and its scale.
  using Row = std::function<float(std::uint64_t output, std::int8_t* to)>;

  void LoadRows(const void* key, const Row& row_of, std::uint64_t outputs, std::uint64_t inputs);

  Products* products_;
  std::map<const void*, Resident> resident_;
};

}  // namespace accelerator

#endif  // MLC_RVV_ACCELERATORS_RUNTIME_LINEAR_H_
