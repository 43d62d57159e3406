// SPDX-License-Identifier: Apache-2.0
// Products on a device with VTA's instruction set.
#include "runtime/products.h"

#include <bit>

#include "vta/functional.h"

namespace accelerator {
namespace {

using std::uint64_t;

constexpr uint64_t kPlanes = 4;  // bytes of a sum; the device stores each byte in its own plane

// Returns the specification, or throws DeviceError if no device has such sizes.
const AcceleratorSpec& Checked(const AcceleratorSpec& spec) {
  for (std::uint32_t size : {spec.batch, spec.inputs, spec.outputs, spec.micro_ops, spec.weights,
                             spec.values, spec.sums}) {
    if (!std::has_single_bit(size) || size > 1u << 16) {
      throw DeviceError("no device has a block or a buffer of " + std::to_string(size) +
                        " elements: powers of two up to 65536");
    }
  }
  return spec;
}

class DeviceProducts : public Products {
 public:
  explicit DeviceProducts(const AcceleratorImage& image)
      : Products(image), simulator_(accelerator_create(&Checked(image.spec)), accelerator_destroy) {
    if (simulator_ == nullptr) throw DeviceError("no room for the device's buffers");
  }

 private:
  int Run(const AcceleratorProgram& program, Memory* memory, AcceleratorCounts* counts,
          char* message) override {
    return accelerator_run(simulator_.get(), memory->data(), memory->size(), program.stream,
                           program.instructions, 0, counts, message, kMessageBytes);
  }

  void Collect(const AcceleratorLayer& layer, const AcceleratorProgram& program,
               const std::uint8_t* results, uint64_t rows, std::int32_t* sums) const override {
    const AcceleratorSpec& spec = image().spec;
    const uint64_t across = Blocks(layer.outputs, spec.outputs);
    const uint64_t plane = Blocks(program.rows, spec.batch) * spec.batch * across * spec.outputs;
    for (uint64_t r = 0; r < rows; ++r) {
      for (uint64_t output = 0; output < layer.outputs; ++output) {
        const uint64_t block = r / spec.batch * across + output / spec.outputs;
        const uint64_t at =
            (block * spec.batch + r % spec.batch) * spec.outputs + output % spec.outputs;
        std::uint32_t sum = 0;
        for (uint64_t p = 0; p < kPlanes; ++p) {
          sum |= std::uint32_t{results[p * plane + at]} << (8 * p);
        }
        *sums++ = static_cast<std::int32_t>(sum);
      }
    }
  }

  std::unique_ptr<void, void (*)(void*)> simulator_;
};

}  // namespace

std::unique_ptr<Products> MakeProducts(const AcceleratorImage& image) {
  return std::make_unique<DeviceProducts>(image);
}

}  // namespace accelerator
