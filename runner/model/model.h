// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/runtime/tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "input/json.h"
#include "model/params.h"
#include "program/arguments.h"

namespace rvv_runner {

// A model library in the Relax VM: its functions and what it says of itself.
class Library {
 public:
  // The library in this file, or the one that is linked in when the path is empty.
  // Throws InputError when there is none, when it lacks a function, or when this CPU's vector
  // registers are shorter than it was compiled for (or than `check_vlen` bits).
  Library(const std::string& path, int64_t check_vlen);

  const Json& metadata() const { return metadata_; }
  // A number of the metadata, or `otherwise` when it says nothing (or -1).
  int64_t Limit(const std::string& name, int64_t otherwise) const;

  // A function that the library has to have; throws InputError when it lacks it.
  tvm::ffi::Function Function(const std::string& name) const;

  // Reorders, in place, the parameters that the library wants in tiles; not to be done twice.
  void ArrangeWeights(const tvm::ffi::Array<tvm::ffi::Any>& params) const;

 private:
  tvm::ffi::Module library_;
  tvm::ffi::Module vm_;
  Json metadata_;
};

// A model with its parameters and one sequence in its KV cache.
class Model {
 public:
  // `max_seq` and `chunk` bound the sequence and one prefill call, in tokens.
  Model(const Library& library, tvm::ffi::Array<tvm::ffi::Any> params, int64_t max_seq,
        int64_t chunk, const Region& region);

  // Reads tokens by the library's prefill or decode function (decode: one token).
  // Gives float32 logits [vocab] after the last token; throws RunError when they are not that.
  std::vector<float> Prefill(const std::vector<int32_t>& tokens);
  std::vector<float> Decode(int32_t token);

 private:
  std::vector<float> Step(const tvm::ffi::Function& call, const std::vector<int32_t>& tokens,
                          bool marked);

  tvm::ffi::Function embed_;
  tvm::ffi::Function prefill_;
  tvm::ffi::Function decode_;
  tvm::ffi::Function begin_forward_;
  tvm::ffi::Function end_forward_;
  tvm::ffi::Array<tvm::ffi::Any> params_;
  tvm::ffi::Any cache_;
  Region region_;
};

}  // namespace rvv_runner
