// SPDX-License-Identifier: Apache-2.0
#include "runtime/products.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace accelerator {
namespace {

using std::uint64_t;

constexpr float kMost = 127.0f;
constexpr uint64_t kPlanes = 4;  // bytes of a sum, each of which leaves in a plane of its own

uint64_t Blocks(uint64_t extent, uint64_t block) { return (extent + block - 1) / block; }

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

// Rows that one program multiplies.
struct Products::Part {
  uint64_t first;  // row
  uint64_t rows;
  const AcceleratorProgram* program;
  Buffer results;
};

Products::Products(const AcceleratorImage& image)
    : image_(image), device_(image.spec, image.memory), stream_(&device_) {}

const AcceleratorLayer& Products::LayerOf(uint64_t outputs, uint64_t inputs) const {
  for (std::uint32_t i = 0; i < image_.count; ++i) {
    const AcceleratorLayer& layer = image_.layers[i];
    if (layer.outputs == outputs && layer.inputs == inputs && layer.count) return layer;
  }
  throw DeviceError("no program for layers of " + std::to_string(outputs) + " x " +
                    std::to_string(inputs) + " was linked in");
}

Buffer Products::AllocateWeights(const AcceleratorLayer& layer) {
  const AcceleratorSpec& spec = device_.spec();
  const uint64_t blocks = Blocks(layer.outputs, spec.outputs) * Blocks(layer.inputs, spec.inputs);
  return device_.Allocate(blocks * spec.outputs * spec.inputs);
}

uint64_t Products::WeightAt(const AcceleratorLayer& layer, uint64_t output, uint64_t input) const {
  const AcceleratorSpec& spec = device_.spec();
  const uint64_t across = Blocks(layer.outputs, spec.outputs);
  const uint64_t deep = Blocks(layer.inputs, spec.inputs);
  const uint64_t column = output / spec.outputs, step = input / spec.inputs;
  // The tiles before this one fill all of the depth; in it, blocks lie by input, then output.
  const uint64_t from = column / layer.tile_outputs * layer.tile_outputs;
  const uint64_t columns = std::min<uint64_t>(layer.tile_outputs, across - from);
  const uint64_t top = step / layer.tile_inputs * layer.tile_inputs;
  const uint64_t before = from * deep + top * columns;
  const uint64_t block = before + (step - top) * columns + (column - from);
  return (block * spec.outputs + output % spec.outputs) * spec.inputs + input % spec.inputs;
}

Buffer Products::MicroOpsOf(const AcceleratorProgram& program) {
  const auto found = micro_ops_.find(&program);
  if (found != micro_ops_.end()) return found->second;
  const Buffer made = device_.Allocate(program.micro_op_bytes);
  device_.Write(made, program.micro_ops, program.micro_op_bytes);
  micro_ops_.emplace(&program, made);
  return made;
}

void Products::Multiply(const AcceleratorLayer& layer, const Buffer& weights,
                        const std::int8_t* values, uint64_t rows, std::int32_t* sums) {
  const AcceleratorSpec& spec = device_.spec();
  const uint64_t inputs = layer.inputs;
  const uint64_t across = Blocks(layer.outputs, spec.outputs), deep = Blocks(inputs, spec.inputs);
  std::vector<Part> parts;
  for (uint64_t first = 0; first < rows; first += parts.back().rows) {
    const AcceleratorProgram* program = layer.programs;
    const AcceleratorProgram* last = layer.programs + layer.count - 1;
    while (program != last && program->rows < rows - first) ++program;
    parts.push_back({first, std::min<uint64_t>(program->rows, rows - first), program, {}});
    MicroOpsOf(*program);  // they stay, and so must lie before what goes
  }
  const uint64_t mark = device_.Mark();
  try {
    for (Part& part : parts) {
      const uint64_t down = Blocks(part.program->rows, spec.batch);
      std::vector<std::int8_t> blocks(down * spec.batch * deep * spec.inputs);
      for (uint64_t r = 0; r < part.rows; ++r) {
        const std::int8_t* row = values + (part.first + r) * inputs;
        const uint64_t top = r / spec.batch * deep, line = r % spec.batch;
        for (uint64_t i = 0; i < inputs; i += spec.inputs) {
          const uint64_t to = ((top + i / spec.inputs) * spec.batch + line) * spec.inputs;
          const uint64_t end = std::min<uint64_t>(inputs, i + spec.inputs);
          std::copy(row + i, row + end, blocks.begin() + to);
        }
      }
      const Buffer given = device_.Allocate(blocks.size());
      device_.Write(given, blocks.data(), blocks.size());
      part.results = device_.Allocate(kPlanes * down * spec.batch * across * spec.outputs);
      stream_.Launch(*part.program, {MicroOpsOf(*part.program), weights, given, part.results});
    }
    stream_.Synchronise();
    for (const Part& part : parts) Collect(part, layer, sums);
  } catch (...) {
    device_.Release(mark);
    throw;
  }
  device_.Release(mark);
}

void Products::Collect(const Part& part, const AcceleratorLayer& layer, std::int32_t* sums) const {
  const AcceleratorSpec& spec = device_.spec();
  const uint64_t outputs = layer.outputs, across = Blocks(outputs, spec.outputs);
  std::vector<std::uint8_t> bytes(part.results.bytes);
  device_.Read(part.results, bytes.data(), bytes.size());
  const uint64_t plane = bytes.size() / kPlanes;
  for (uint64_t r = 0; r < part.rows; ++r) {
    std::int32_t* to = sums + (part.first + r) * outputs;
    for (uint64_t output = 0; output < outputs; ++output) {
      const uint64_t block = r / spec.batch * across + output / spec.outputs;
      const uint64_t at = (block * spec.batch + r % spec.batch) * spec.outputs + output % spec.outputs;
      std::uint32_t sum = 0;
      for (uint64_t p = 0; p < kPlanes; ++p) {
        sum |= std::uint32_t{bytes[p * plane + at]} << (8 * p);
      }
      to[output] = static_cast<std::int32_t>(sum);
    }
  }
}

}  // namespace accelerator
