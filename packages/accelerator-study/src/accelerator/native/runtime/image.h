// SPDX-License-Identifier: Apache-2.0
// The device or matrix unit that a runner was linked for and the programs of its model's layers, which
// host/image.py writes as C++ source.
#ifndef MLC_RVV_ACCELERATORS_RUNTIME_IMAGE_H_
#define MLC_RVV_ACCELERATORS_RUNTIME_IMAGE_H_

#include <cstdint>

#include "runtime/spec.h"

extern "C" {

// A layer's stream for so many rows, whose blocks lie in tiles of so many, with the addresses that
// it was made for. A matrix unit has no micro-ops.
struct AcceleratorProgram {
  std::uint32_t rows;
  std::uint32_t tile_rows;
  std::uint64_t micro_ops_at, weights_at, values_at, results_at;
  const std::uint8_t* micro_ops;
  std::uint64_t micro_op_bytes;
  const std::uint8_t* stream;
  std::uint64_t instructions;
};

// Layers of one size, which share programs; weights lie in tiles of so many blocks.
struct AcceleratorLayer {
  std::uint32_t outputs, inputs;
  std::uint32_t tile_outputs, tile_inputs;
  const AcceleratorProgram* programs;  // fewest rows first
  std::uint32_t count;
};

struct AcceleratorImage {
  const char* name;
  AcceleratorSpec spec;
  std::uint64_t memory;
  const AcceleratorLayer* layers;
  std::uint32_t count;
  std::uint32_t chunk;  // tokens of a cache that attention's layers take at once; 0: none does
};

extern const AcceleratorImage mlc_rvv_accelerator_image;
}

#endif  // MLC_RVV_ACCELERATORS_RUNTIME_IMAGE_H_
