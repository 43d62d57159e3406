// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tvm/ffi/container/array.h>
#include <tvm/runtime/tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/huge_pages.h"
#include "model/library.h"
#include "model/param_index.h"

namespace rvv_runner {

// Reads the wanted parameters, in their order, from MLC-LLM's tensor-cache.json and shards, and
// arranges them for `library`. Values stored as bfloat16 ("f32-to-bf16") are widened. Throws
// InputError when a parameter is missing or of another shape or dtype, when a file is missing, too
// short or malformed, or when memory is lacking. `check`: also when a shard's bytes do not have the
// digest of the index; an index without digests is taken. `map_folder`: they are not read into
// memory, but lie in a MappedFile there; empty: in memory. There, with several `nodes` of memory,
// each thread's share of a parameter lies in the thread's own.
tvm::ffi::Array<tvm::ffi::Any> LoadParams(const std::string& folder, const Library& library,
                                          bool check = true, const std::string& map_folder = "",
                                          size_t nodes = MemoryNodes());

// Rows of the embedding among the loaded parameters: the size of the vocabulary. Nothing when
// no parameter's name says that it is the embedding.
std::optional<int64_t> VocabularySize(const std::vector<WantedParam>& wanted,
                                      const tvm::ffi::Array<tvm::ffi::Any>& params);

}  // namespace rvv_runner
