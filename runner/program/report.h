// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "engine/request.h"
#include "program/arguments.h"

namespace rvv_runner {

// Writes rows of logits as little-endian float32; without a path, nothing.
class LogitsFile {
 public:
  // Throws InputError when the file cannot be written.
  explicit LogitsFile(const std::string& path);
  void Add(const std::vector<float>& row);
  void Close();

 private:
  std::string path_;
  std::ofstream stream_;
};

// Prints the result, for people or (with --json) for programs. `beside`: the tokens of the answers
// that were computed in the same batch. `text`: the answer in words, when there is a tokenizer.
// `vlen`: of the library that ran, in bits. `device`: its counters as JSON.
void Report(const Arguments& arguments, int64_t vlen, const std::vector<int32_t>& tokens,
            const std::vector<std::vector<int32_t>>& beside, const Ended& ended,
            const std::optional<std::string>& text, const std::string& device, std::ostream& out);

}  // namespace rvv_runner
