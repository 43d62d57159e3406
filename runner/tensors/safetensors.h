// SPDX-License-Identifier: Apache-2.0
// Reads and writes safetensors files (https://github.com/huggingface/safetensors). It does not
// depend on TVM's runtime, so that it can be fuzzed alone: a file comes from outside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rvv_runner {

// A tensor of a file: TVM's name of its dtype, its shape, and its bytes (little-endian).
struct TensorBytes {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string_view bytes;
};

// The tensors by name; they point into `text`, the bytes of the file. Throws InputError that starts
// with `where` if the text is not a complete safetensors file, or has an unknown dtype.
std::map<std::string, TensorBytes> ParseSafetensors(std::string_view text,
                                                    const std::string& where);

// The bytes of a file. Throws RunError for a dtype that the format does not have.
std::string MakeSafetensors(const std::vector<std::pair<std::string, TensorBytes>>& tensors);

}  // namespace rvv_runner
