// SPDX-License-Identifier: Apache-2.0
#include "model/param_index.h"

#include <filesystem>

#include "input/errors.h"
#include "input/md5.h"
#include "input/read_file.h"

namespace rvv_runner {
namespace {

constexpr char kWidened[] = "f32-to-bf16";

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

std::string ShapeText(const Json& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    const auto size = WholeNumber(shape[i]);
    text += i ? ", " : "";
    text += size ? std::to_string(*size) : shape[i].is_string() ? TextOf(shape[i], "") : "?";
  }
  return text + "]";
}

// Bytes of one value.
int64_t BytesOf(const std::string& dtype, const std::string& where) {
  static const std::map<std::string, int64_t> kKnown = {
      {"float64", 8}, {"float32", 4}, {"float16", 2}, {"bfloat16", 2}, {"int64", 8},  {"int32", 4},
      {"int16", 2},   {"int8", 1},    {"uint64", 8},  {"uint32", 4},   {"uint16", 2}, {"uint8", 1}};
  const auto found = kKnown.find(dtype);
  if (found == kKnown.end()) throw InputError(where + ": unknown dtype '" + dtype + "'");
  return found->second;
}

int64_t Elements(const std::vector<int64_t>& shape, const std::string& where) {
  int64_t count = 1;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(count, size, &count) || count > (int64_t{1} << 40)) {
      throw InputError(where + ": shape " + ShapeText(shape) + " is too large");
    }
  }
  return count;
}

// A shard must be a file directly in the folder: an index must not name files elsewhere.
std::string ShardPath(const std::string& folder, const std::string& name,
                      const std::string& where) {
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
      name.find('\0') != std::string::npos) {
    throw InputError(where + ": dataPath '" + name + "' is not the name of a file");
  }
  return folder + "/" + name;
}

std::string ReadDigest(const Json& shard, const std::string& where) {
  const Json* field = Find(shard, "md5sum");
  if (field == nullptr) return "";
  const std::string& digest = TextOf(*field, where);
  if (digest.size() != 32 || digest.find_first_not_of("0123456789abcdef") != std::string::npos) {
    throw InputError(where + ": md5sum is not 32 hexadecimal digits in lower case");
  }
  return digest;
}

ParamRecord ReadRecord(const Json& json, const std::string& shard, int64_t shard_bytes,
                       const std::string& digest, const std::string& where) {
  ParamRecord record{shard,
                     shard_bytes,
                     digest,
                     IntegerOf(Field(json, "byteOffset", where), where),
                     IntegerOf(Field(json, "nbytes", where), where),
                     TextOf(Field(json, "dtype", where), where),
                     TextOf(Field(json, "format", where), where),
                     {}};
  for (const Json& size : ListOf(Field(json, "shape", where), where)) {
    record.shape.push_back(IntegerOf(size, where));
    if (record.shape.back() < 0) throw InputError(where + ": a size is below zero");
  }
  const bool inside = record.offset >= 0 && record.bytes >= 0 && record.offset <= shard_bytes &&
                      record.bytes <= shard_bytes - record.offset;
  if (!inside) throw InputError(where + ": its bytes lie outside the shard");
  return record;
}

}  // namespace

ParamIndex ParseIndex(const std::string& text, const std::string& folder) {
  const std::string path = folder + "/" + kIndexFile;
  const Json index = ParseJson(text, path);
  ParamIndex records;
  for (const Json& shard : ListOf(Field(index, "records", path), path)) {
    const std::string file = ShardPath(folder, TextOf(Field(shard, "dataPath", path), path), path);
    const int64_t bytes = IntegerOf(Field(shard, "nbytes", path), path);
    const std::string digest = ReadDigest(shard, path);
    if (bytes < 0) throw InputError(path + ": the size of a shard is below zero");
    for (const Json& entry : ListOf(Field(shard, "records", path), path)) {
      const std::string name = TextOf(Field(entry, "name", path), path);
      const std::string where = path + ", parameter " + name;
      if (!records.emplace(name, ReadRecord(entry, file, bytes, digest, where)).second) {
        throw InputError(where + ": listed twice");
      }
    }
  }
  return records;
}

std::vector<WantedParam> WantedParams(const Json& metadata) {
  const std::string where = "the library's metadata";
  std::vector<WantedParam> wanted;
  try {
    for (const Json& param : ListOf(Field(metadata, "params", where), where)) {
      wanted.push_back({TextOf(Field(param, "name", where), where),
                        TextOf(Field(param, "dtype", where), where),
                        ListOf(Field(param, "shape", where), where)});
    }
  } catch (const InputError& error) {
    throw RunError(error.what());
  }
  return wanted;
}

void CheckShape(const WantedParam& wanted, const ParamRecord& record,
                std::map<std::string, int64_t>* open, const std::string& where) {
  bool same = wanted.shape.size() == record.shape.size();
  for (size_t i = 0; same && i < record.shape.size(); ++i) {
    const Json& size = wanted.shape[i];
    if (size.is_string()) {
      same = open->emplace(size, record.shape[i]).first->second == record.shape[i];
    } else {
      const auto fixed = WholeNumber(size);
      same = fixed && (*fixed == -1 || *fixed == record.shape[i]);
    }
  }
  if (!same) {
    throw InputError(where + ": its shape is " + ShapeText(record.shape) +
                     ", but the model library needs " + ShapeText(wanted.shape));
  }
}

StoredAs CheckStored(const ParamRecord& record, const std::string& where) {
  const int64_t size = BytesOf(record.dtype, where);
  const bool widen = record.format == kWidened && record.dtype == "float32";
  if (!widen && record.format != "raw" && record.format != kWidened) {
    throw InputError(where + ": unknown format '" + record.format + "'");
  }
  const int64_t count = Elements(record.shape, where);
  const int64_t stored = widen ? 2 : size;
  if (count * stored != record.bytes) {
    throw InputError(where + ": shape " + ShapeText(record.shape) + " of " + record.dtype +
                     " takes " + std::to_string(count * stored) + " bytes in format " +
                     record.format + ", not " + std::to_string(record.bytes));
  }
  return {count, widen};
}

ParamFiles FilesOf(const std::string& folder) {
  constexpr size_t kLongestIndex = size_t{64} << 20;
  Md5 digest;
  digest.Add(ReadFile(folder + "/" + kIndexFile, kLongestIndex));
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
  }
  return {bytes, digest.Finish()};
}

}  // namespace rvv_runner
