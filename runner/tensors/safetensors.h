// SPDX-License-Identifier: Apache-2.0
// Files of safetensors (https://github.com/huggingface/safetensors), apart from the runtime that
// the values go to: a file comes from outside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rvv_runner {

// One tensor of a file: its dtype by TVM's name, its shape, and its bytes, little-endian.
struct TensorBytes {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string_view bytes;
};

// Tensors by name; they point into `text`, the file's bytes. Throws InputError that starts with
// `where` when the text is no whole file of safetensors, or has a dtype that is not known here.
std::map<std::string, TensorBytes> ParseSafetensors(std::string_view text,
                                                    const std::string& where);

// The bytes of a file. Throws RunError for a dtype that the format does not have.
std::string MakeSafetensors(const std::vector<std::pair<std::string, TensorBytes>>& tensors);

}  // namespace rvv_runner
