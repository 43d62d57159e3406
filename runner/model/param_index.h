// SPDX-License-Identifier: Apache-2.0
// What MLC-LLM's tensor-cache.json says, apart from the runtime that the values go to: it comes
// from outside, and is fuzzed by itself.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "input/json.h"

namespace rvv_runner {

constexpr char kIndexFile[] = "tensor-cache.json";

// A parameter as the model library wants it. A size that the library leaves open is a name
// (all sizes of one name are equal) or -1.
struct WantedParam {
  std::string name;
  std::string dtype;
  Json shape;
};

// Where the bytes of one parameter lie.
struct ParamRecord {
  std::string shard;
  int64_t shard_bytes;
  int64_t offset;
  int64_t bytes;
  std::string dtype;
  std::string format;
  std::vector<int64_t> shape;
};

using ParamIndex = std::map<std::string, ParamRecord>;

// How a record's bytes become values.
struct StoredAs {
  int64_t count;  // values
  bool widen;     // bfloat16 that stands for float32
};

// Reads the `params` of the library's metadata; throws RunError when they are malformed.
std::vector<WantedParam> WantedParams(const Json& metadata);

// Reads the index of a folder; throws InputError when it is malformed, when a shard is no file
// of this very folder, or when a record reaches out of its shard.
ParamIndex ParseIndex(const std::string& text, const std::string& folder);

// Compares with what the library wants; sizes that it leaves open are noted in `open`. Throws
// InputError that starts with `where`.
void CheckShape(const WantedParam& wanted, const ParamRecord& record,
                std::map<std::string, int64_t>* open, const std::string& where);

// Checks dtype, format and shape against the record's bytes; throws InputError.
StoredAs CheckStored(const ParamRecord& record, const std::string& where);

}  // namespace rvv_runner
