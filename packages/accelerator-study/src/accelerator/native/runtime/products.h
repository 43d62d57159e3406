// SPDX-License-Identifier: Apache-2.0
// Integer products on a device or a matrix unit: int8 values by the transpose of int8 weights in its
// memory.
#ifndef MLC_RVV_ACCELERATORS_RUNTIME_PRODUCTS_H_
#define MLC_RVV_ACCELERATORS_RUNTIME_PRODUCTS_H_

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

// A range of the device's memory: address and size in bytes.
struct Buffer {
  std::uint64_t at = 0;
  std::uint64_t bytes = 0;
};

// Rounds a row to int8, ties to even, and returns the scale by which it divided the row.
// Throws DeviceError, which names `what`, if a number is not finite.
float Quantise(const float* row, std::uint64_t count, std::int8_t* to, const char* what);

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

  // Returns a zeroed buffer for a layer's weights in tiles. Throws DeviceError if memory is full.
  virtual Buffer AllocateWeights(const AcceleratorLayer& layer) = 0;
  // Returns the byte offset of a weight in the layer's tiles.
  std::uint64_t WeightAt(const AcceleratorLayer& layer, std::uint64_t output,
                         std::uint64_t input) const;
  // Copies `bytes` bytes into a buffer. Throws DeviceError if the buffer is too small.
  virtual void Write(const Buffer& to, const void* from, std::uint64_t bytes,
                     std::uint64_t offset = 0) = 0;

  // Computes sums [rows, outputs] = values [rows, inputs] by the transpose of the weights.
  // Throws DeviceError with the device's message.
  virtual void Multiply(const AcceleratorLayer& layer, const Buffer& weights,
                        const std::int8_t* values, std::uint64_t rows, std::int32_t* sums) = 0;

  // Returns the counters since the program's start as fields of a JSON object.
  virtual std::string Counters() const = 0;

  const AcceleratorImage& image() const { return image_; }

 protected:
  // The rows of values that a program multiplies.
  struct Part {
    std::uint64_t first;  // index of the first row
    std::uint64_t rows;
    const AcceleratorProgram* program;
  };

  // Returns parts of `rows` rows: the largest program, repeated, then the smallest for the rest.
  static std::vector<Part> PartsOf(const AcceleratorLayer& layer, std::uint64_t rows);
  std::uint64_t WeightBytes(const AcceleratorLayer& layer) const;
  // Returns a part's values in the order of its program's loads; rows beyond the part are zeros.
  std::vector<std::int8_t> InBlocks(const AcceleratorLayer& layer, const Part& part,
                                    const std::int8_t* values) const;

 private:
  const AcceleratorImage& image_;
};

// Returns the products of the linked device, vta/ or extension/. Throws DeviceError if the image is
// for another kind of device.
std::unique_ptr<Products> MakeProducts(const AcceleratorImage& image);

}  // namespace accelerator

#endif  // MLC_RVV_ACCELERATORS_RUNTIME_PRODUCTS_H_
