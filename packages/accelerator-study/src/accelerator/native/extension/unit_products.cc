// SPDX-License-Identifier: Apache-2.0
// Products on a CPU's matrix unit, whose instructions a functional simulator runs. Each layer has a
// memory, which begins with the weights; values and sums of a product follow.
#include "runtime/products.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <sstream>

#include "extension/functional.h"

namespace accelerator {
namespace {

using std::uint64_t;

constexpr uint64_t kMostInstructions = uint64_t{1} << 40;
constexpr std::size_t kMessageBytes = 256;
constexpr unsigned kByteBits = 8;

class UnitProducts : public Products {
 public:
  explicit UnitProducts(const AcceleratorImage& image)
      : Products(image), vlen_(kByteBits * image.spec.batch * image.spec.inputs) {
    if (image.spec.batch != image.spec.outputs) {
      throw DeviceError("a register of weights has as many rows as one of values");
    }
  }

  Buffer AllocateWeights(const AcceleratorLayer& layer) override {
    memories_.emplace_back(WeightBytes(layer));
    return {memories_.size() - 1, WeightBytes(layer)};
  }
  void Write(const Buffer& to, const void* from, uint64_t bytes, uint64_t offset) override {
    if (offset > to.bytes || bytes > to.bytes - offset) {
      throw DeviceError(std::to_string(bytes) + " bytes do not fit a buffer of " +
                        std::to_string(to.bytes));
    }
    std::memcpy(memories_[to.at].data() + offset, from, bytes);
  }
  void Multiply(const AcceleratorLayer& layer, const Buffer& weights, const std::int8_t* values,
                uint64_t rows, std::int32_t* sums) override;
  std::string Counters() const override;

 private:
  void Run(const AcceleratorProgram& program, std::uint8_t* memory, uint64_t bytes);
  void Collect(const Part& part, const std::uint8_t* results, const AcceleratorLayer& layer,
               std::int32_t* sums) const;

  std::uint32_t vlen_;
  std::deque<std::vector<std::uint8_t>> memories_;
  ExtensionCounts counts_{};
};

void UnitProducts::Multiply(const AcceleratorLayer& layer, const Buffer& weights,
                            const std::int8_t* values, uint64_t rows, std::int32_t* sums) {
  const AcceleratorSpec& spec = image().spec;
  std::vector<std::uint8_t>& memory = memories_[weights.at];
  for (const Part& part : PartsOf(layer, rows)) {
    const std::vector<std::int8_t> blocks = InBlocks(layer, part, values);
    const uint64_t down = Blocks(part.program->rows, spec.batch);
    const uint64_t across = Blocks(layer.outputs, spec.outputs);
    const uint64_t count = down * across * spec.batch * spec.outputs;
    const uint64_t bytes = part.program->results_at + count * sizeof(std::int32_t);
    if (memory.size() < bytes) memory.resize(bytes);
    std::memcpy(memory.data() + part.program->values_at, blocks.data(), blocks.size());
    Run(*part.program, memory.data(), bytes);
    Collect(part, memory.data() + part.program->results_at, layer, sums);
  }
}

void UnitProducts::Run(const AcceleratorProgram& program, std::uint8_t* memory, uint64_t bytes) {
  char message[kMessageBytes];
  ExtensionCounts counts;
  if (extension_run(vlen_, memory, bytes, program.stream, program.instructions, kMostInstructions,
                    &counts, message, kMessageBytes)) {
    throw DeviceError(message);
  }
  counts_.instructions += counts.instructions;
  counts_.products += counts.products;
  counts_.loaded_bytes += counts.loaded_bytes;
  counts_.stored_bytes += counts.stored_bytes;
}

// Copies a part's sums, in order of tiles of rows, tiles of outputs, row blocks, output blocks.
void UnitProducts::Collect(const Part& part, const std::uint8_t* results,
                           const AcceleratorLayer& layer, std::int32_t* sums) const {
  const uint64_t side = image().spec.batch, down = Blocks(part.program->rows, side);
  const uint64_t across = Blocks(layer.outputs, side);
  for (uint64_t r = 0; r < part.rows; ++r) {
    const uint64_t row = r / side, top = row / part.program->tile_rows * part.program->tile_rows;
    const uint64_t high = std::min<uint64_t>(part.program->tile_rows, down - top);
    for (uint64_t output = 0; output < layer.outputs; ++output) {
      const uint64_t column = output / side,
                     left = column / layer.tile_outputs * layer.tile_outputs;
      const uint64_t wide = std::min<uint64_t>(layer.tile_outputs, across - left);
      const uint64_t block = top * across + left * high + (row - top) * wide + (column - left);
      const uint64_t at = (block * side + r % side) * side + output % side;
      std::memcpy(sums + (part.first + r) * layer.outputs + output,
                  results + at * sizeof(std::int32_t), sizeof(std::int32_t));
    }
  }
}

std::string UnitProducts::Counters() const {
  std::ostringstream text;
  text << "\"instructions\":" << counts_.instructions << ",\"gemm_steps\":" << counts_.products
       << ",\"read_bytes\":" << counts_.loaded_bytes
       << ",\"written_bytes\":" << counts_.stored_bytes;
  return text.str();
}

}  // namespace

std::unique_ptr<Products> MakeProducts(const AcceleratorImage& image) {
  return std::make_unique<UnitProducts>(image);
}

}  // namespace accelerator
