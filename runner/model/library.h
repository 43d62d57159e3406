// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "input/json.h"
#include "model/cpus.h"
#include "picture/preparation.h"

namespace rvv_runner {

// A model library in the Relax VM: its functions and its metadata.
class Library {
 public:
  // Opens the library of this file, or a linked-in library if the path is empty: among several, the
  // one that suits this machine's CPUs best (BestLibrary). Keeps the process on the CPUs that can
  // run it: create it before other threads. Throws InputError if there is no library, if it lacks
  // one of `functions` (none: those of a language model, or of an encoder), or if every CPU's vector
  // registers are shorter than it was compiled for (or than `check_vlen` bits).
  Library(const std::string& path, int64_t check_vlen,
          const std::vector<std::string>& functions = {});

  const Json& metadata() const { return metadata_; }
  // Bits in a vector register that it was compiled for; 0 if that is unknown.
  int64_t vlen() const { return vlen_; }
  // A number of the metadata, or `otherwise` if it is missing or -1.
  int64_t Limit(const std::string& name, int64_t otherwise) const;

  // True if the library has this function.
  bool Has(const std::string& name) const;
  // True if it gives vectors of whole texts, and answers nothing (BERT).
  bool encodes() const { return Has("encode"); }
  // A function of the library. Throws InputError if the library lacks it.
  tvm::ffi::Function Function(const std::string& name) const;

  // The order in which it reads parameters: the text of what ArrangeWeights does; empty: nothing.
  std::string Arrangement() const;
  // Reorders, in place, the parameters that the library reads in tiles. Must not be called twice.
  void ArrangeWeights(const tvm::ffi::Array<tvm::ffi::Any>& params) const;

 private:
  int64_t vlen_ = 0;       // these are declared before library_, whose initializer sets them
  std::vector<Cpu> cpus_;  // that can run it
  tvm::ffi::Module library_;
  tvm::ffi::Module vm_;
  Json metadata_;
};

// Counters of the linked-in accelerator as JSON; "null" without one.
std::string DeviceCounters();

// Sizes of the keys, or values, of a token in the cache.
struct CacheSizes {
  int64_t layers;
  int64_t heads;
  int64_t width;      // elements of a head's
  int64_t row_bytes;  // of a head's

  // True if each takes a byte, and a float32 behind them.
  bool int8() const { return row_bytes == width + 4; }
  // Bytes of keys and values.
  int64_t bytes() const { return 2 * layers * heads * row_bytes; }
  // Elements of the keys and values of one layer.
  int64_t layer_elements() const { return 2 * heads * (int8() ? row_bytes : width); }
};

// The sizes that the metadata names; nullopt if it lacks one.
std::optional<CacheSizes> CacheSizesOf(const Library& library);

// Bytes of the keys and values of one token, from the metadata; 0 if the metadata lacks them.
int64_t TokenBytes(const Library& library);

// How the model reads pictures; nullopt of a model that reads text alone.
std::optional<Preparation> PreparationOf(const Library& library);

// Bytes of a sequence's recurrent states, and of a checkpoint; 0 for a model without such states.
int64_t StateBytes(const Library& library);
}  // namespace rvv_runner
