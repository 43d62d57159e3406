// SPDX-License-Identifier: Apache-2.0
// Integer products on a device or a matrix unit: int8 values by the transpose of int8 weights in its
// memory.
#ifndef MLC_RVV_ACCELERATORS_RUNTIME_PRODUCTS_H_
#define MLC_RVV_ACCELERATORS_RUNTIME_PRODUCTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/image.h"

// Functions of the linking program that record roundings (runner/model/roundings.h).
extern "C" {
int mlc_rvv_records_roundings();
void mlc_rvv_record_rows(const std::int8_t* values, const float* scales, std::uint64_t rows,
                         std::uint64_t columns);
}

namespace accelerator {

// The error for a fault of the device, or for a request that the device cannot do.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The memory of a layer's programs: its head, the layer's weights in tiles, values and results.
using Memory = std::vector<std::uint8_t>;

// Rounds a row to int8, ties to even, and returns the scale by which it divided the row; if a number
// is not finite, a row of zeros and the scale NaN, so that all sums of that row are NaN.
float Quantise(const float* row, std::uint64_t count, std::int8_t* to);

// Returns the number of blocks that cover an extent.
inline std::uint64_t Blocks(std::uint64_t extent, std::uint64_t block) {
  return (extent + block - 1) / block;
}

// Integer products; this base class orders blocks and chooses programs, a subclass runs programs.
class Products {
 public:
  explicit Products(const AcceleratorImage& image) : image_(image) {}
  virtual ~Products() = default;
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // Returns the layer of a size. Throws DeviceError if the image has no program for the size.
  const AcceleratorLayer& LayerOf(std::uint64_t outputs, std::uint64_t inputs) const;

  // Returns memory with zeroed weights. Throws DeviceError if the device's memory is full.
  Memory AllocateWeights(const AcceleratorLayer& layer);
  // Writes a weight to its place in the layer's tiles.
  void SetWeight(const AcceleratorLayer& layer, std::uint64_t output, std::uint64_t input,
                 std::int8_t weight, Memory* memory) const;

  // Computes sums [rows, outputs] = values [rows, inputs] by the transpose of the weights.
  // Throws DeviceError with the device's message, or if the device's memory is full.
  void Multiply(const AcceleratorLayer& layer, const std::int8_t* values, std::uint64_t rows,
                Memory* memory, std::int32_t* sums);

  // Returns the counters since the program's start as fields of a JSON object.
  std::string Counters() const;

  const AcceleratorImage& image() const { return image_; }

 protected:
  static constexpr std::size_t kMessageBytes = 512;

  // Runs a program on memory and adds to the counts; returns 0, or another number with a message.
  virtual int Run(const AcceleratorProgram& program, Memory* memory, AcceleratorCounts* counts,
                  char* message) = 0;
  // Copies the first rows of a program's results to sums [rows, outputs].
  virtual void Collect(const AcceleratorLayer& layer, const AcceleratorProgram& program,
                       const std::uint8_t* results, std::uint64_t rows,
                       std::int32_t* sums) const = 0;

 private:
  // The rows of values that a program multiplies.
  struct Part {
    std::uint64_t first;  // index of the first row
    std::uint64_t rows;
    const AcceleratorProgram* program;
  };

  // Returns parts of `rows` rows: the largest program, repeated, then the smallest for the rest.
  static std::vector<Part> PartsOf(const AcceleratorLayer& layer, std::uint64_t rows);
  // Returns the bytes of a layer's head and weights.
  std::uint64_t WeightsEnd(const AcceleratorLayer& layer) const;
  // Throws DeviceError if so many bytes do not fit the device's memory beside all weights.
  void CheckRoom(std::uint64_t bytes) const;
  // Writes a part's values in the order of its program's loads; rows beyond the part are zeros.
  void WriteValues(const AcceleratorLayer& layer, const Part& part, const std::int8_t* values,
                   Memory* memory) const;

  const AcceleratorImage& image_;
  std::uint64_t used_ = 0;  // bytes of all weights
  AcceleratorCounts counts_{};
};

// Returns the products of the linked device, vta/ or extension/. Throws DeviceError if the image is
// for another kind of device.
std::unique_ptr<Products> MakeProducts(const AcceleratorImage& image);

}  // namespace accelerator

#endif  // MLC_RVV_ACCELERATORS_RUNTIME_PRODUCTS_H_
