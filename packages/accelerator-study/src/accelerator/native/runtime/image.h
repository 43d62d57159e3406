// SPDX-License-Identifier: Apache-2.0
// The image of a runner: its device or matrix unit and the programs of its model's layers, which
// host/image.py writes as C++ source.
#ifndef MLC_RVV_ACCELERATORS_RUNTIME_IMAGE_H_
#define MLC_RVV_ACCELERATORS_RUNTIME_IMAGE_H_

#include <cstdint>

#include "runtime/simulation.h"

extern "C" {

// A layer's stream for a number of rows of values, with the addresses in its instructions.
struct AcceleratorProgram {
  std::uint32_t rows;
  std::uint32_t tile_rows;  // blocks of rows in a tile of values
  std::uint64_t values_at, results_at;
  const std::uint8_t* stream;
  std::uint64_t instructions;
};

// The programs for layers of one size; weights lie in tiles of tile_outputs x tile_inputs blocks.
// Memory begins with `head`, such as a device's micro-ops; the weights follow it.
struct AcceleratorLayer {
  std::uint32_t outputs, inputs;
  std::uint32_t tile_outputs, tile_inputs;
  const std::uint8_t* head;
  std::uint64_t head_bytes;
  const AcceleratorProgram* programs;  // by ascending rows
  std::uint32_t count;
};

struct AcceleratorImage {
  const char* name;
  AcceleratorSpec spec;
  std::uint64_t memory;
  const AcceleratorLayer* layers;
  std::uint32_t count;
  std::uint32_t chunk;  // tokens of a cache in a product of attention; 0: no attention
};

extern const AcceleratorImage mlc_rvv_accelerator_image;
}

#endif  // MLC_RVV_ACCELERATORS_RUNTIME_IMAGE_H_
