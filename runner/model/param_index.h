// SPDX-License-Identifier: Apache-2.0
// Reads MLC-LLM's tensor-cache.json. It does not depend on TVM's runtime, so that it can be fuzzed
// alone: the file comes from outside.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "input/json.h"

namespace rvv_runner {

constexpr char kIndexFile[] = "tensor-cache.json";

// A parameter that the model library needs. An open size is a name (sizes of the same name must be
// equal) or -1.
struct WantedParam {
  std::string name;
  std::string dtype;
  Json shape;
};

// The position of the bytes of one parameter.
struct ParamRecord {
  std::string shard;
  int64_t shard_bytes;
  std::string shard_md5;  // 32 hexadecimal digits in lower case; empty: the index has none
  int64_t offset;
  int64_t bytes;
  std::string dtype;
  std::string format;
  std::vector<int64_t> shape;
};

using ParamIndex = std::map<std::string, ParamRecord>;

// The stored form of a parameter.
struct StoredAs {
  int64_t count;  // values
  bool widen;     // stored as bfloat16, to be widened to float32
};

// Reads the `params` of the library's metadata; throws RunError when they are malformed.
std::vector<WantedParam> WantedParams(const Json& metadata);

// Reads the index of a folder; throws InputError when it is malformed, when a shard is not a
// file directly in the folder, or when a record exceeds its shard.
ParamIndex ParseIndex(const std::string& text, const std::string& folder);

// Bytes of the files in a folder of parameters, and the MD5 of its index.
struct ParamFiles {
  int64_t bytes;
  std::string digest;
};
ParamFiles FilesOf(const std::string& folder);

// Compares a record with what the library needs. `open` collects the values of named sizes. Throws
// InputError that starts with `where`.
void CheckShape(const WantedParam& wanted, const ParamRecord& record,
                std::map<std::string, int64_t>* open, const std::string& where);

// Checks dtype, format and shape against the record's bytes; throws InputError.
StoredAs CheckStored(const ParamRecord& record, const std::string& where);

}  // namespace rvv_runner
