// SPDX-License-Identifier: Apache-2.0
#include "runtime/products.h"

#include <algorithm>
#include <cmath>

namespace accelerator {
namespace {

using std::uint64_t;

constexpr float kMost = 127.0f;

}  // namespace

float Quantise(const float* row, uint64_t count, std::int8_t* to, const char* what) {
  float largest = 1e-30f;
  bool finite = true;
  for (uint64_t i = 0; i < count; ++i) {
    const float size = std::fabs(row[i]);
    finite = finite && size <= 3.4028234e38f;
    largest = std::max(largest, size);
  }
  if (!finite) throw DeviceError(std::string(what) + " holds NaN or infinity");
  const float scale = largest / kMost;
  for (uint64_t i = 0; i < count; ++i) {
    const float whole = std::nearbyint(row[i] / scale);
    to[i] = static_cast<std::int8_t>(std::clamp(whole, -kMost, kMost));
  }
  return scale;
}

const AcceleratorLayer& Products::LayerOf(uint64_t outputs, uint64_t inputs) const {
  for (std::uint32_t i = 0; i < image_.count; ++i) {
    const AcceleratorLayer& layer = image_.layers[i];
    if (layer.outputs == outputs && layer.inputs == inputs && layer.count) return layer;
  }
  throw DeviceError("no program for layers of " + std::to_string(outputs) + " x " +
                    std::to_string(inputs) + " was linked in");
}

uint64_t Products::WeightAt(const AcceleratorLayer& layer, uint64_t output, uint64_t input) const {
  const AcceleratorSpec& spec = image_.spec;
  const uint64_t across = Blocks(layer.outputs, spec.outputs);
  const uint64_t deep = Blocks(layer.inputs, spec.inputs);
  const uint64_t column = output / spec.outputs, step = input / spec.inputs;
  // The tiles before `from` have all inputs; a tile has its blocks by input, then output.
  const uint64_t from = column / layer.tile_outputs * layer.tile_outputs;
  const uint64_t columns = std::min<uint64_t>(layer.tile_outputs, across - from);
  const uint64_t top = step / layer.tile_inputs * layer.tile_inputs;
  const uint64_t before = from * deep + top * columns;
  const uint64_t block = before + (step - top) * columns + (column - from);
  return (block * spec.outputs + output % spec.outputs) * spec.inputs + input % spec.inputs;
}

uint64_t Products::WeightBytes(const AcceleratorLayer& layer) const {
  const AcceleratorSpec& spec = image_.spec;
  const uint64_t blocks = Blocks(layer.outputs, spec.outputs) * Blocks(layer.inputs, spec.inputs);
  return blocks * spec.outputs * spec.inputs;
}

std::vector<Products::Part> Products::PartsOf(const AcceleratorLayer& layer, uint64_t rows) {
  std::vector<Part> parts;
  const AcceleratorProgram* last = layer.programs + layer.count - 1;
  for (uint64_t first = 0; first < rows; first += parts.back().rows) {
    const AcceleratorProgram* program = layer.programs;
    while (program != last && program->rows < rows - first) ++program;
    parts.push_back({first, std::min<uint64_t>(program->rows, rows - first), program});
  }
  return parts;
}

std::vector<std::int8_t> Products::InBlocks(const AcceleratorLayer& layer, const Part& part,
                                            const std::int8_t* values) const {
  const AcceleratorSpec& spec = image_.spec;
  const uint64_t inputs = layer.inputs, deep = Blocks(inputs, spec.inputs);
  const uint64_t down = Blocks(part.program->rows, spec.batch), tile = part.program->tile_rows;
  std::vector<std::int8_t> blocks(down * spec.batch * deep * spec.inputs);
  for (uint64_t r = 0; r < part.rows; ++r) {
    const std::int8_t* row = values + (part.first + r) * inputs;
    const uint64_t block = r / spec.batch, line = r % spec.batch;
    const uint64_t top = block / tile * tile, high = std::min(tile, down - top);
    for (uint64_t i = 0; i < inputs; i += spec.inputs) {
      const uint64_t position = top * deep + i / spec.inputs * high + (block - top);
      const uint64_t end = std::min<uint64_t>(inputs, i + spec.inputs);
      std::copy(row + i, row + end, blocks.begin() + (position * spec.batch + line) * spec.inputs);
    }
  }
  return blocks;
}

}  // namespace accelerator
