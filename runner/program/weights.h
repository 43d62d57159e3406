// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tvm/ffi/container/array.h>

#include <cstdint>
#include <string>

#include "model/library.h"
#include "program/arguments.h"
#include "text/tokenizer.h"

namespace rvv_runner {

// The parameters in the order of the library, and what belongs to them.
struct Weights {
  tvm::ffi::Array<tvm::ffi::Any> params;
  int64_t vocabulary = 0;  // its size
  std::string verdict;     // of the model's answer when it was built, see ReadWeights
  Json predictions;        // of its speed on boards, from the manifest; null without
};

// Reads the parameters of --params, and of MANIFEST.json in the folder around them the predictions and
// the verdict: right, unchecked, wrong, or empty without it. Warns if it is not right. `tokenizer` may be null.
// Throws InputError when the parameters do not fit the library, or when the tokenizer belongs to
// another model.
Weights ReadWeights(const Library& library, const Arguments& arguments, const Tokenizer* tokenizer);

// The name of the model whose parameters are in this folder: that of the folder around it.
std::string ModelName(const std::string& params);

Tokenizer ReadTokenizer(const std::string& file);

}  // namespace rvv_runner
