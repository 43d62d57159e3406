// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/runtime/tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "input/json.h"
#include "model/params.h"
#include "model/roi.h"

namespace rvv_runner {

// A model library in the Relax VM: its functions and what it says of itself.
class Library {
 public:
  // The library in this file, or the one that is linked in when the path is empty; of several,
  // that for the longest vector registers that this CPU has.
  // Throws InputError when there is none, when it lacks one of these functions (those of a
  // language model), or when this CPU's vector registers are shorter than it was compiled for (or
  // than `check_vlen` bits).
  Library(const std::string& path, int64_t check_vlen,
          const std::vector<std::string>& functions = {"embed", "prefill", "decode",
                                                       "create_tir_paged_kv_cache"});

  const Json& metadata() const { return metadata_; }
  // Bits in a vector register that it was compiled for; 0 when nothing says.
  int64_t vlen() const { return vlen_; }
  // A number of the metadata, or `otherwise` when it says nothing (or -1).
  int64_t Limit(const std::string& name, int64_t otherwise) const;

  // True if the library has this function.
  bool Has(const std::string& name) const;
  // A function that the library has to have; throws InputError when it lacks it.
  tvm::ffi::Function Function(const std::string& name) const;

  // Reorders, in place, the parameters that the library wants in tiles; not to be done twice.
  void ArrangeWeights(const tvm::ffi::Array<tvm::ffi::Any>& params) const;

 private:
  int64_t vlen_ = 0;  // before the library, which sets it
  tvm::ffi::Module library_;
  tvm::ffi::Module vm_;
  Json metadata_;
};

// Counters of the device beside the CPU that was linked in, as JSON; "null" where there is none.
std::string DeviceCounters();

// Room in a KV cache.
struct CacheLimits {
  int64_t sequences = 1;  // that one call takes
  int64_t tokens = 0;     // of all sequences together
  int64_t chunk = 0;      // that one prefill call takes
};

// A model with its parameters and a KV cache of several sequences, which the caller names.
class Model {
 public:
  static constexpr int64_t kPageTokens = 16;

  // Room for sequences of so many tokens each. A page belongs to one of them: what their last pages
  // leave empty is of no use to the others.
  static CacheLimits RoomFor(int64_t sequences, int64_t tokens, int64_t chunk) {
    const int64_t pages = (tokens + kPageTokens - 1) / kPageTokens;
    return {sequences, sequences * pages * kPageTokens, chunk};
  }

  Model(const Library& library, tvm::ffi::Array<tvm::ffi::Any> params, const CacheLimits& limits,
        const Region& region);

  // An empty sequence; one that goes, with its pages.
  void Add(int64_t sequence);
  void Remove(int64_t sequence);
  // A sequence `child` that begins with so many tokens of another, in the same pages.
  void Fork(int64_t parent, int64_t child, int64_t tokens);
  // Forgets a sequence's last tokens.
  void Drop(int64_t sequence, int64_t tokens);
  // Removes all sequences, whatever state a failed call left them in.
  void Clear();
  // Sequences may be forked and shortened: not where their keys lie in a sliding window.
  bool shares() const { return window_ == 0; }

  int64_t FreePages() const;
  int64_t pages() const { return pages_; }
  // Bytes of all pages; 0 when the metadata does not say.
  int64_t bytes() const { return bytes_; }
  // Sequences that one Decode call takes: 1 where the library cannot decode a batch.
  int64_t batch() const { return batch_; }

  // Reads tokens by the library's prefill function, or another one where that reads the beginning of
  // a sequence alone.
  // Gives float32 logits [vocab] after the last token; throws RunError when they are not that.
  std::vector<float> Prefill(int64_t sequence, const std::vector<int32_t>& tokens);
  // One token of each of several sequences, at most batch(); logits of each.
  std::vector<std::vector<float>> Decode(const std::vector<int64_t>& sequences,
                                         const std::vector<int32_t>& tokens);

 private:
  // The function that reads so many more tokens of a sequence.
  const tvm::ffi::Function& Reader(int64_t sequence, size_t tokens) const;
  std::vector<std::vector<float>> Step(const tvm::ffi::Function& call,
                                       const std::vector<int64_t>& sequences,
                                       const std::vector<int32_t>& tokens, bool marked);

  tvm::ffi::Function embed_;
  tvm::ffi::Function prefill_;
  tvm::ffi::Function extend_;  // null where prefill_ goes on with a sequence, too
  tvm::ffi::Function decode_;
  tvm::ffi::Function batch_decode_;
  tvm::ffi::Function begin_forward_;
  tvm::ffi::Function end_forward_;
  tvm::ffi::Function free_pages_;
  tvm::ffi::Array<tvm::ffi::Any> params_;
  tvm::ffi::Any cache_;
  std::map<int64_t, int64_t> lengths_;  // tokens of each sequence
  Region region_;
  int64_t window_;
  int64_t sink_;
  int64_t batch_;
  int64_t pages_;
  int64_t bytes_;
};

}  // namespace rvv_runner
