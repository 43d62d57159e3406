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

// The record of roundings of the program that links this (runner/model/roundings.h).
extern "C" {
int mlc_rvv_records_roundings();
void mlc_rvv_record_rows(const std::int8_t* values, const float* scales, std::uint64_t rows,
                         std::uint64_t columns);
}

namespace accelerator {

// What the device, or somebody who asks too much of it, did wrong.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A range of the device's memory; both in bytes.
struct Buffer {
  std::uint64_t at = 0;
  std::uint64_t bytes = 0;
};

// Rounds a row to int8, ties to even; gives the scale by which it was divided.
// Throws DeviceError, which names `what`, where a number is not finite.
float Quantise(const float* row, std::uint64_t count, std::int8_t* to, const char* what);

inline std::uint64_t Blocks(std::uint64_t extent, std::uint64_t block) {
  return (extent + block - 1) / block;
}

// The same for every kind of device: order of blocks, programs by rows. What runs them is linked in.
class Products {
 public:
  explicit Products(const AcceleratorImage& image) : image_(image) {}
  virtual ~Products() = default;
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // Throws DeviceError where no program of that size was linked in.
  const AcceleratorLayer& LayerOf(std::uint64_t outputs, std::uint64_t inputs) const;

  // Room for a layer's weights in tiles, zeros. Throws DeviceError when memory is full.
  virtual Buffer AllocateWeights(const AcceleratorLayer& layer) = 0;
  // Place of a weight in the tiles, in bytes.
  std::uint64_t WeightAt(const AcceleratorLayer& layer, std::uint64_t output,
                         std::uint64_t input) const;
  // Copies into a buffer. Throws DeviceError where it is not that large.
  virtual void Write(const Buffer& to, const void* from, std::uint64_t bytes,
                     std::uint64_t offset = 0) = 0;

  // sums [rows, outputs] = values [rows, inputs] by the transpose of the weights.
  // Throws DeviceError with the device's message.
  virtual void Multiply(const AcceleratorLayer& layer, const Buffer& weights,
                        const std::int8_t* values, std::uint64_t rows, std::int32_t* sums) = 0;

  // Counters since the program's begin: fields of a JSON object.
  virtual std::string Counters() const = 0;

  const AcceleratorImage& image() const { return image_; }

 protected:
  // Rows that one program multiplies.
  struct Part {
    std::uint64_t first;  // row
    std::uint64_t rows;
    const AcceleratorProgram* program;
  };

  // Programs for so many rows: whole ones, and the one that fits the rest best.
  static std::vector<Part> PartsOf(const AcceleratorLayer& layer, std::uint64_t rows);
  std::uint64_t WeightBytes(const AcceleratorLayer& layer) const;
  // A part's values in the order in which its program loads them; rows beyond its own are zeros.
  std::vector<std::int8_t> InBlocks(const AcceleratorLayer& layer, const Part& part,
                                    const std::int8_t* values) const;

 private:
  const AcceleratorImage& image_;
};

// Defined by the kind of device that is linked in. Throws DeviceError if the image is not for it.
std::unique_ptr<Products> MakeProducts(const AcceleratorImage& image);

}  // namespace accelerator

#endif  // MLC_RVV_ACCELERATORS_RUNTIME_PRODUCTS_H_
