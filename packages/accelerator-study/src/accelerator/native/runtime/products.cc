// SPDX-License-Identifier: Apache-2.0
#include "runtime/products.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

namespace accelerator {
namespace {

using std::uint64_t;

constexpr float kMost = 127.0f;

}  // namespace

float Quantise(const float* row, uint64_t count, std::int8_t* to) {
  float largest = 1e-30f;
  bool finite = true;
  for (uint64_t i = 0; i < count; ++i) {
    const float size = std::fabs(row[i]);
    finite = finite && size <= 3.4028234e38f;
    largest = std::max(largest, size);
  }
  if (!finite) {
    std::fill_n(to, count, std::int8_t{0});
    return std::numeric_limits<float>::quiet_NaN();
  }
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

uint64_t Products::WeightsEnd(const AcceleratorLayer& layer) const {
  const AcceleratorSpec& spec = image_.spec;
  const uint64_t blocks = Blocks(layer.outputs, spec.outputs) * Blocks(layer.inputs, spec.inputs);
  return layer.head_bytes + blocks * spec.outputs * spec.inputs;
}

void Products::CheckRoom(uint64_t bytes) const {
  const uint64_t room = image_.memory - used_;
  if (bytes > room) {
    throw DeviceError("the device's memory is full: " + std::to_string(bytes) +
                      " bytes are wanted, " + std::to_string(room) + " of " +
                      std::to_string(image_.memory) + " are free");
  }
}

Memory Products::AllocateWeights(const AcceleratorLayer& layer) {
  const uint64_t end = WeightsEnd(layer);
  CheckRoom(end);
  used_ += end;
  Memory memory(layer.head, layer.head + layer.head_bytes);
  memory.resize(end);
  return memory;
}

void Products::SetWeight(const AcceleratorLayer& layer, uint64_t output, uint64_t input,
                         std::int8_t weight, Memory* memory) const {
  const AcceleratorSpec& spec = image_.spec;
  const uint64_t across = Blocks(layer.outputs, spec.outputs);
  const uint64_t deep = Blocks(layer.inputs, spec.inputs);
  const uint64_t column = output / spec.outputs, step = input / spec.inputs;
  // The tiles before `from` have all inputs; a tile has its blocks by input, then output.
  const uint64_t from = column / layer.tile_outputs * layer.tile_outputs;
  const uint64_t columns = std::min<uint64_t>(layer.tile_outputs, across - from);
  const uint64_t top = step / layer.tile_inputs * layer.tile_inputs;
  const uint64_t before = from * deep + top * columns;
  const uint64_t line = (before + (step - top) * columns + (column - from)) * spec.outputs;
  const uint64_t at = (line + output % spec.outputs) * spec.inputs + input % spec.inputs;
  (*memory)[layer.head_bytes + at] = static_cast<std::uint8_t>(weight);
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

void Products::WriteValues(const AcceleratorLayer& layer, const Part& part,
                           const std::int8_t* values, Memory* memory) const {
  const AcceleratorSpec& spec = image_.spec;
  const uint64_t inputs = layer.inputs, deep = Blocks(inputs, spec.inputs);
  const uint64_t down = Blocks(part.program->rows, spec.batch), tile = part.program->tile_rows;
  std::uint8_t* blocks = memory->data() + part.program->values_at;
  std::fill_n(blocks, down * spec.batch * deep * spec.inputs, std::uint8_t{0});
  for (uint64_t r = 0; r < part.rows; ++r) {
    const std::int8_t* row = values + (part.first + r) * inputs;
    const uint64_t block = r / spec.batch, line = r % spec.batch;
    const uint64_t top = block / tile * tile, high = std::min(tile, down - top);
    for (uint64_t i = 0; i < inputs; i += spec.inputs) {
      const uint64_t position = top * deep + i / spec.inputs * high + (block - top);
      const uint64_t end = std::min<uint64_t>(inputs, i + spec.inputs);
      std::copy(row + i, row + end, blocks + (position * spec.batch + line) * spec.inputs);
    }
  }
}

void Products::Multiply(const AcceleratorLayer& layer, const std::int8_t* values, uint64_t rows,
                        Memory* memory, std::int32_t* sums) {
  const AcceleratorSpec& spec = image_.spec;
  const uint64_t across = Blocks(layer.outputs, spec.outputs) * spec.outputs;
  for (const Part& part : PartsOf(layer, rows)) {
    const AcceleratorProgram& program = *part.program;
    const uint64_t down = Blocks(program.rows, spec.batch) * spec.batch;
    const uint64_t end = program.results_at + down * across * sizeof(std::int32_t);
    CheckRoom(end - WeightsEnd(layer));
    if (memory->size() < end) memory->resize(end);
    WriteValues(layer, part, values, memory);
    char message[kMessageBytes];
    if (Run(program, memory, &counts_, message)) throw DeviceError(message);
    Collect(layer, program, memory->data() + program.results_at, part.rows,
            sums + part.first * layer.outputs);
  }
}

std::string Products::Counters() const {
  std::ostringstream text;
  text << "\"instructions\":" << counts_.instructions << ",\"gemm_steps\":" << counts_.gemm_steps
       << ",\"reset_steps\":" << counts_.reset_steps << ",\"alu_steps\":" << counts_.alu_steps
       << ",\"read_bytes\":" << counts_.read_bytes
       << ",\"written_bytes\":" << counts_.written_bytes;
  return text.str();
}

}  // namespace accelerator
