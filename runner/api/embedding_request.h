// SPDX-License-Identifier: Apache-2.0
// Requests to /v1/embeddings.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "api/api_request.h"

namespace rvv_runner {

// Texts of which vectors are asked.
struct EmbeddingRequest {
  std::string model;  // empty: not given
  std::vector<ApiPrompt> inputs;
  bool base64 = false;     // the form of the vectors: float32 numbers; else lists of numbers
  int64_t dimensions = 0;  // first numbers of a vector that are kept; 0: all
  std::vector<std::string> ignored;
};

constexpr size_t kMostInputs = 2048;

const FieldTable<EmbeddingRequest>& EmbeddingFields();

// Reads a body. Throws ApiError (400) that names the field at fault.
EmbeddingRequest ParseEmbeddingRequest(std::string_view body);

}  // namespace rvv_runner
