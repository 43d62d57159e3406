// SPDX-License-Identifier: Apache-2.0
// driver_probe FAULT < cases > results: the runtime of a device without a model around it.
// A case: rows, outputs, inputs (64-bit), weights, values (float32); its result: rows x outputs.
// FAULT is "none", or what is wrong with the image or with what is asked. Refused: exit code 2.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "runtime/linear.h"

namespace {

using accelerator::DeviceError;
using accelerator::LinearLayers;

std::vector<float> Read(std::uint64_t count) {
  std::vector<float> found(count);
  if (std::fread(found.data(), sizeof(float), count, stdin) != count) std::exit(1);
  return found;
}

// The image with one byte of each stream changed; it lives as long as the program.
struct Changed {
  std::vector<std::vector<std::uint8_t>> streams;
  std::vector<std::vector<AcceleratorProgram>> programs;
  std::vector<AcceleratorLayer> layers;
  AcceleratorImage image = mlc_rvv_accelerator_image;

  Changed(std::uint64_t at, std::uint8_t bits) {
    for (std::uint32_t i = 0; i < image.count; ++i) {
      layers.push_back(image.layers[i]);
      auto& of_layer = programs.emplace_back();
      for (std::uint32_t p = 0; p < layers[i].count; ++p) {
        of_layer.push_back(layers[i].programs[p]);
        AcceleratorProgram& program = of_layer.back();
        auto& stream = streams.emplace_back(program.stream,
                                            program.stream + 16 * program.instructions);
        stream.at(at) ^= bits;
        program.stream = stream.data();
      }
    }
    for (std::uint32_t i = 0; i < image.count; ++i) layers[i].programs = programs[i].data();
    image.layers = layers.data();
  }
};

void Run(const std::string& fault) {
  Changed changed(0, 0);
  if (fault == "opcode") changed = Changed(0, 7);
  if (fault == "token") changed = Changed(16, 1 << 3);
  if (fault == "address") changed = Changed(6, 0xff);
  if (fault == "memory") changed.image.memory = 16384;
  if (fault == "block") changed.image.spec.inputs = 17;
  if (fault == "layer") changed.image.count = 0;
  LinearLayers layers(changed.image);
  std::uint64_t sizes[3];
  while (std::fread(sizes, sizeof(sizes), 1, stdin) == 1) {
    const std::uint64_t rows = sizes[0], outputs = sizes[1], inputs = sizes[2];
    std::vector<float> weights = Read(outputs * inputs), values = Read(rows * inputs);
    if (fault == "weight") weights.back() = std::numeric_limits<float>::infinity();
    if (fault == "value") values.back() = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> out(rows * outputs);
    layers.Load(weights.data(), weights.data(), outputs, inputs);
    const void* key = fault == "unknown" ? static_cast<const void*>(&fault) : weights.data();
    layers.Multiply(key, values.data(), out.data(), rows, outputs, inputs);
    std::fwrite(out.data(), sizeof(float), out.size(), stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Run(argc > 1 ? argv[1] : "none");
    return 0;
  } catch (const DeviceError& error) {
    std::cerr << "driver_probe: " << error.what() << "\n";
    return 2;
  }
}
