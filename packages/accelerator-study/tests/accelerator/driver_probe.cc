// SPDX-License-Identifier: Apache-2.0
// driver_probe FAULT [RECORD] < cases > results: the runtime of a device without a model around it.
// A case: rows, outputs, inputs (64-bit), weights, values (float32); its result: rows x outputs.
// One of attention: rows, 0, tokens, width, whether a cache keeps them (64-bit), queries, keys,
// values (float32), tokens that each row sees (64-bit); its result: rows x width, then lse of each
// row, and how many tokens were written to the device so far (64-bit).
// RECORD is a file for what is rounded. FAULT is "none", or what is wrong with the image or with what is asked. Refused: exit code 2.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "input/errors.h"
#include "model/roundings.h"
#include "runtime/attention.h"
#include "runtime/linear.h"

namespace {

using accelerator::Attention;
using accelerator::DeviceError;
using accelerator::LinearLayers;
using accelerator::Products;

template <typename Number = float>
std::vector<Number> Read(std::uint64_t count) {
  std::vector<Number> found(count);
  if (std::fread(found.data(), sizeof(Number), count, stdin) != count) std::exit(1);
  return found;
}

// A cache of one head, whose tokens keep their places.
struct Cache {
  std::vector<float> keys = std::vector<float>(1 << 16), values = keys;
};

void RunAttention(std::uint64_t rows, std::uint64_t tokens, Cache* cache, Attention* attention) {
  const std::vector<std::uint64_t> sizes = Read<std::uint64_t>(2);
  const std::uint64_t width = sizes[0];
  const std::vector<float> queries = Read(rows * width), keys = Read(tokens * width);
  const std::vector<float> values = Read(tokens * width);
  const std::vector<std::uint64_t> visible = Read<std::uint64_t>(rows);
  std::copy(keys.begin(), keys.end(), cache->keys.begin());
  std::copy(values.begin(), values.end(), cache->values.begin());
  std::vector<float> out(rows * width), lse(rows);
  std::vector<accelerator::Query> listed;
  for (std::uint64_t r = 0; r < rows; ++r) {
    listed.push_back({&queries[r * width], visible[r], &out[r * width], &lse[r]});
  }
  std::vector<accelerator::Token> known;
  for (std::uint64_t t = 0; t < tokens; ++t) {
    known.push_back({&cache->keys[t * width], &cache->values[t * width]});
  }
  const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(width)));
  attention->Attend(listed, known, width, scale, sizes[1] != 0);
  const std::uint64_t written = attention->written();
  std::fwrite(out.data(), sizeof(float), out.size(), stdout);
  std::fwrite(lse.data(), sizeof(float), lse.size(), stdout);
  std::fwrite(&written, sizeof(written), 1, stdout);
}

// The image with one byte of each stream changed; it lives as long as the program.
struct Changed {
  std::vector<std::vector<std::uint8_t>> streams;
  std::vector<std::vector<AcceleratorProgram>> programs;
  std::vector<AcceleratorLayer> layers;
  AcceleratorImage image = mlc_rvv_accelerator_image;

  Changed(std::uint64_t at, std::uint8_t bits) {
    const std::uint64_t word = image.spec.weights ? 16 : 4;  // a matrix unit has no buffers
    for (std::uint32_t i = 0; i < image.count; ++i) {
      layers.push_back(image.layers[i]);
      auto& of_layer = programs.emplace_back();
      for (std::uint32_t p = 0; p < layers[i].count; ++p) {
        of_layer.push_back(layers[i].programs[p]);
        AcceleratorProgram& program = of_layer.back();
        auto& stream =
            streams.emplace_back(program.stream, program.stream + word * program.instructions);
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
  if (fault == "chunk") changed.image.chunk = 0;
  const std::unique_ptr<Products> products = accelerator::MakeProducts(changed.image);
  LinearLayers layers(products.get());
  Attention attention(products.get());
  Cache cache;
  std::uint64_t sizes[3];
  while (std::fread(sizes, sizeof(sizes), 1, stdin) == 1) {
    const std::uint64_t rows = sizes[0], outputs = sizes[1], inputs = sizes[2];
    if (outputs == 0) {
      RunAttention(rows, inputs, &cache, &attention);
      continue;
    }
    std::vector<float> weights = Read(outputs * inputs);
    const std::vector<float> values = Read(rows * inputs);
    if (fault == "weight") weights.back() = std::numeric_limits<float>::infinity();
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
    std::optional<rvv_runner::RoundingRecord> record;
    if (argc > 2) record.emplace(argv[2]);
    Run(argc > 1 ? argv[1] : "none");
    if (record) record->Close();
    return 0;
  } catch (const DeviceError& error) {
    std::cerr << "driver_probe: " << error.what() << "\n";
    return 2;
  } catch (const rvv_runner::InputError& error) {
    std::cerr << "driver_probe: " << error.what() << "\n";
    return 2;
  } catch (const rvv_runner::RunError& error) {
    std::cerr << "driver_probe: " << error.what() << "\n";
    return 1;
  }
}
