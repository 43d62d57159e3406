// SPDX-License-Identifier: Apache-2.0
// Products on a device with VTA's instruction set.
#include "runtime/products.h"

#include <map>
#include <sstream>

#include "vta/device.h"

namespace accelerator {
namespace {

using std::uint64_t;

constexpr uint64_t kPlanes = 4;  // bytes of a sum; the device stores each byte in its own plane

class DeviceProducts : public Products {
 public:
  explicit DeviceProducts(const AcceleratorImage& image)
      : Products(image), device_(image.spec, image.memory) {}

  Buffer AllocateWeights(const AcceleratorLayer& layer) override {
    return device_.Allocate(WeightBytes(layer));
  }
  void Write(const Buffer& to, const void* from, uint64_t bytes, uint64_t offset) override {
    device_.Write(to, from, bytes, offset);
  }
  void Multiply(const AcceleratorLayer& layer, const Buffer& weights, const std::int8_t* values,
                uint64_t rows, std::int32_t* sums) override;
  std::string Counters() const override;

 private:
  Buffer MicroOpsOf(const AcceleratorProgram& program);
  void Collect(const Part& part, const Buffer& results, const AcceleratorLayer& layer,
               std::int32_t* sums) const;

  Device device_;
  std::map<const AcceleratorProgram*, Buffer> micro_ops_;
};

Buffer DeviceProducts::MicroOpsOf(const AcceleratorProgram& program) {
  const auto entry = micro_ops_.find(&program);
  if (entry != micro_ops_.end()) return entry->second;
  const Buffer allocated = device_.Allocate(program.micro_op_bytes);
  device_.Write(allocated, program.micro_ops, program.micro_op_bytes);
  micro_ops_.emplace(&program, allocated);
  return allocated;
}

void DeviceProducts::Multiply(const AcceleratorLayer& layer, const Buffer& weights,
                              const std::int8_t* values, uint64_t rows, std::int32_t* sums) {
  const AcceleratorSpec& spec = device_.spec();
  const std::vector<Part> parts = PartsOf(layer, rows);
  // Micro-ops stay in memory, so their buffers must lie before the ones that Release frees.
  for (const Part& part : parts) MicroOpsOf(*part.program);
  const uint64_t mark = device_.Mark();
  try {
    for (const Part& part : parts) {
      const std::vector<std::int8_t> blocks = InBlocks(layer, part, values);
      const Buffer input = device_.Allocate(blocks.size());
      device_.Write(input, blocks.data(), blocks.size());
      const uint64_t down = Blocks(part.program->rows, spec.batch);
      const uint64_t across = Blocks(layer.outputs, spec.outputs);
      const Buffer results = device_.Allocate(kPlanes * down * spec.batch * across * spec.outputs);
      device_.Run(*part.program, {MicroOpsOf(*part.program), weights, input, results});
      Collect(part, results, layer, sums);
      device_.Release(mark);
    }
  } catch (...) {
    device_.Release(mark);
    throw;
  }
}

void DeviceProducts::Collect(const Part& part, const Buffer& results, const AcceleratorLayer& layer,
                             std::int32_t* sums) const {
  const AcceleratorSpec& spec = device_.spec();
  const uint64_t outputs = layer.outputs, across = Blocks(outputs, spec.outputs);
  std::vector<std::uint8_t> bytes(results.bytes);
  device_.Read(results, bytes.data(), bytes.size());
  const uint64_t plane = bytes.size() / kPlanes;
  for (uint64_t r = 0; r < part.rows; ++r) {
    std::int32_t* to = sums + (part.first + r) * outputs;
    for (uint64_t output = 0; output < outputs; ++output) {
      const uint64_t block = r / spec.batch * across + output / spec.outputs;
      const uint64_t at =
          (block * spec.batch + r % spec.batch) * spec.outputs + output % spec.outputs;
      std::uint32_t sum = 0;
      for (uint64_t p = 0; p < kPlanes; ++p) {
        sum |= std::uint32_t{bytes[p * plane + at]} << (8 * p);
      }
      to[output] = static_cast<std::int32_t>(sum);
    }
  }
}

std::string DeviceProducts::Counters() const {
  const AcceleratorCounts& counts = device_.counts();
  std::ostringstream text;
  text << "\"instructions\":" << device_.instructions() << ",\"gemm_steps\":" << counts.gemm_steps
       << ",\"reset_steps\":" << counts.reset_steps << ",\"alu_steps\":" << counts.alu_steps
       << ",\"read_bytes\":"
       << counts.micro_op_bytes + counts.weight_bytes + counts.input_bytes + counts.sum_bytes
       << ",\"written_bytes\":" << counts.output_bytes;
  return text.str();
}

}  // namespace

std::unique_ptr<Products> MakeProducts(const AcceleratorImage& image) {
  return std::make_unique<DeviceProducts>(image);
}

}  // namespace accelerator
