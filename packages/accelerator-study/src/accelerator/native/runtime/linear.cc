// SPDX-License-Identifier: Apache-2.0
#include "runtime/linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

namespace accelerator {

using std::uint64_t;

void LinearLayers::Load(const void* key, const float* weights, uint64_t outputs, uint64_t inputs) {
  const auto row = [&](uint64_t output, std::int8_t* to) {
    const float scale = Quantise(weights + output * inputs, inputs, to);
    if (std::isnan(scale)) throw DeviceError("a weight holds NaN or infinity");
    return scale;
  };
  LoadRows(key, row, outputs, inputs);
}

void LinearLayers::LoadInt8(const void* key, const std::int8_t* rows, uint64_t outputs,
                            uint64_t inputs) {
  const auto row = [&](uint64_t output, std::int8_t* to) {
    const std::int8_t* from = rows + output * (inputs + sizeof(float));
    std::copy(from, from + inputs, to);
    float scale;
    std::memcpy(&scale, from + inputs, sizeof(scale));
    if (!std::isfinite(scale)) throw DeviceError("a weight's scale is NaN or infinity");
    return scale;
  };
  LoadRows(key, row, outputs, inputs);
}

void LinearLayers::LoadRows(const void* key, const Row& row_of, uint64_t outputs, uint64_t inputs) {
  const AcceleratorLayer& layer = products_->LayerOf(outputs, inputs);
  Resident resident{&layer, products_->AllocateWeights(layer), std::vector<float>(outputs)};
  std::vector<std::int8_t> row(inputs);
  for (uint64_t output = 0; output < outputs; ++output) {
    resident.scales[output] = row_of(output, row.data());
    for (uint64_t input = 0; input < inputs; ++input) {
      products_->SetWeight(layer, output, input, row[input], &resident.memory);
    }
  }
  resident_.insert_or_assign(key, std::move(resident));
}

void LinearLayers::Multiply(const void* key, const float* values, float* out, uint64_t rows,
                            uint64_t outputs, uint64_t inputs) {
  const auto entry = resident_.find(key);
  if (entry == resident_.end() || entry->second.layer->outputs != outputs ||
      entry->second.layer->inputs != inputs) {
    throw DeviceError("weights of " + std::to_string(outputs) + " x " + std::to_string(inputs) +
                      " were not loaded before their use");
  }
  Resident& weights = entry->second;
  std::vector<std::int8_t> rounded(rows * inputs);
  std::vector<float> scales;
  for (uint64_t r = 0; r < rows; ++r) {
    const uint64_t at = r * inputs;
    scales.push_back(Quantise(values + at, inputs, &rounded[at]));
  }
  mlc_rvv_record_rows(rounded.data(), scales.data(), rows, inputs);
  std::vector<std::int32_t> sums(rows * outputs);
  products_->Multiply(*weights.layer, rounded.data(), rows, &weights.memory, sums.data());
  for (uint64_t r = 0; r < rows; ++r) {
    for (uint64_t output = 0; output < outputs; ++output) {
      const double scaled = double{scales[r]} * sums[r * outputs + output];
      out[r * outputs + output] = static_cast<float>(scaled * weights.scales[output]);
    }
  }
}

}  // namespace accelerator
