// SPDX-License-Identifier: Apache-2.0
// Products on a CPU's matrix unit, whose instructions a functional simulator runs.
#include "runtime/products.h"

#include <algorithm>
#include <cstring>

#include "extension/functional.h"

namespace accelerator {
namespace {

using std::uint64_t;

constexpr uint64_t kMostInstructions = uint64_t{1} << 40;
constexpr unsigned kByteBits = 8;

class UnitProducts : public Products {
 public:
  explicit UnitProducts(const AcceleratorImage& image) : Products(image) {
    if (image.spec.batch != image.spec.outputs) {
      throw DeviceError("a register of weights has as many rows as one of values");
    }
  }

 private:
  int Run(const AcceleratorProgram& program, Memory* memory, AcceleratorCounts* counts,
          char* message) override {
    const std::uint32_t vlen = kByteBits * image().spec.batch * image().spec.inputs;
    return extension_run(vlen, memory->data(), memory->size(), program.stream, program.instructions,
                         kMostInstructions, counts, message, kMessageBytes);
  }

  // The sums are in order of tiles of rows, tiles of outputs, row blocks, output blocks.
  void Collect(const AcceleratorLayer& layer, const AcceleratorProgram& program,
               const std::uint8_t* results, uint64_t rows, std::int32_t* sums) const override {
    const uint64_t side = image().spec.batch, down = Blocks(program.rows, side);
    const uint64_t across = Blocks(layer.outputs, side);
    for (uint64_t r = 0; r < rows; ++r) {
      const uint64_t row = r / side, top = row / program.tile_rows * program.tile_rows;
      const uint64_t high = std::min<uint64_t>(program.tile_rows, down - top);
      for (uint64_t output = 0; output < layer.outputs; ++output) {
        const uint64_t column = output / side,
                       left = column / layer.tile_outputs * layer.tile_outputs;
        const uint64_t wide = std::min<uint64_t>(layer.tile_outputs, across - left);
        const uint64_t block = top * across + left * high + (row - top) * wide + (column - left);
        const uint64_t at = (block * side + r % side) * side + output % side;
        std::memcpy(sums++, results + at * sizeof(std::int32_t), sizeof(std::int32_t));
      }
    }
  }
};

}  // namespace

std::unique_ptr<Products> MakeProducts(const AcceleratorImage& image) {
  return std::make_unique<UnitProducts>(image);
}

}  // namespace accelerator
