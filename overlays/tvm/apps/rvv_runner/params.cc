// SPDX-License-Identifier: Apache-2.0
#include "params.h"

#include <tvm/ffi/dtype.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <system_error>

#include "errors.h"

namespace rvv_runner {
namespace {

namespace ffi = tvm::ffi;
using tvm::runtime::Tensor;

constexpr char kIndex[] = "tensor-cache.json";
constexpr char kWidened[] = "f32-to-bf16";

// Where the bytes of one parameter lie.
struct Record {
  std::string shard;
  int64_t shard_bytes;
  int64_t offset;
  int64_t bytes;
  std::string dtype;
  std::string format;
  std::vector<int64_t> shape;
};

using Index = std::map<std::string, Record>;

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

std::string ShapeText(const JsonList& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    const auto* size = std::get_if<int64_t>(&shape[i].value());
    const auto* name = std::get_if<std::string>(&shape[i].value());
    text += (i ? ", " : "") + (size ? std::to_string(*size) : name ? *name : "?");
  }
  return text + "]";
}

std::string ReadText(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::error_code none;
  // A folder can be opened, and fails at the first read.
  if (!stream || std::filesystem::is_directory(path, none)) {
    throw InputError("cannot read " + path);
  }
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// A shard is a file of the folder itself: an index must not reach out of it.
std::string ShardPath(const std::string& folder, const std::string& name, const std::string& where) {
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
      name.find('\0') != std::string::npos) {
    throw InputError(where + ": dataPath '" + name + "' is not the name of a file");
  }
  return folder + "/" + name;
}

Record ReadRecord(const Json& json, const std::string& shard, int64_t shard_bytes,
                  const std::string& where) {
  Record record{shard,
                shard_bytes,
                json.At("byteOffset", where).Integer(where),
                json.At("nbytes", where).Integer(where),
                json.At("dtype", where).Text(where),
                json.At("format", where).Text(where),
                {}};
  for (const Json& size : json.At("shape", where).List(where)) {
    record.shape.push_back(size.Integer(where));
    if (record.shape.back() < 0) throw InputError(where + ": a size below zero");
  }
  const bool inside = record.offset >= 0 && record.bytes >= 0 && record.offset <= shard_bytes &&
                      record.bytes <= shard_bytes - record.offset;
  if (!inside) throw InputError(where + ": its bytes lie outside of the shard");
  return record;
}

Index ReadIndex(const std::string& folder) {
  const std::string path = folder + "/" + kIndex;
  const Json index = Json::Parse(ReadText(path), path);
  Index records;
  for (const Json& shard : index.At("records", path).List(path)) {
    const std::string file =
        ShardPath(folder, shard.At("dataPath", path).Text(path), path);
    const int64_t bytes = shard.At("nbytes", path).Integer(path);
    if (bytes < 0) throw InputError(path + ": a shard of fewer than zero bytes");
    for (const Json& entry : shard.At("records", path).List(path)) {
      const std::string name = entry.At("name", path).Text(path);
      const std::string where = path + ", parameter " + name;
      if (!records.emplace(name, ReadRecord(entry, file, bytes, where)).second) {
        throw InputError(where + ": listed twice");
      }
    }
  }
  return records;
}

DLDataType ParseDtype(const std::string& name, const std::string& where) {
  static const std::set<std::string> kKnown = {"float64", "float32", "float16", "bfloat16",
                                               "int64",   "int32",   "int16",   "int8",
                                               "uint64",  "uint32",  "uint16",  "uint8"};
  if (kKnown.count(name) == 0) throw InputError(where + ": unknown dtype '" + name + "'");
  return ffi::StringToDLDataType(name);
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

// Compares with what the library wants; sizes that it leaves open are noted in `open`.
void CheckShape(const WantedParam& wanted, const Record& record,
                std::map<std::string, int64_t>* open, const std::string& where) {
  bool same = wanted.shape.size() == record.shape.size();
  for (size_t i = 0; same && i < record.shape.size(); ++i) {
    const Json::Value& size = wanted.shape[i].value();
    if (const auto* fixed = std::get_if<int64_t>(&size)) {
      same = *fixed == -1 || *fixed == record.shape[i];
    } else if (const auto* name = std::get_if<std::string>(&size)) {
      same = open->emplace(*name, record.shape[i]).first->second == record.shape[i];
    } else {
      same = false;
    }
  }
  if (!same) {
    throw InputError(where + ": its shape is " + ShapeText(record.shape) +
                     ", the model library wants " + ShapeText(wanted.shape));
  }
}

// Reads parts of shards; keeps the last file open, since neighbours mostly share one.
class ShardReader {
 public:
  void Read(const Record& record, char* target, const std::string& where) {
    if (record.shard != path_) Open(record, where);
    stream_.seekg(record.offset);
    stream_.read(target, record.bytes);
    if (stream_.gcount() != record.bytes) throw InputError("cannot read " + path_);
  }

 private:
  void Open(const Record& record, const std::string& where) {
    stream_ = std::ifstream(record.shard, std::ios::binary);
    if (!stream_) throw InputError(where + ": cannot read " + record.shard);
    stream_.seekg(0, std::ios::end);
    const int64_t size = stream_.tellg();
    if (size != record.shard_bytes) {
      throw InputError(record.shard + " holds " + std::to_string(size) + " bytes, " + kIndex +
                       " says " + std::to_string(record.shard_bytes));
    }
    path_ = record.shard;
  }

  std::ifstream stream_;
  std::string path_;
};

// Widens in place, from the end: each float32 lies at or behind its bfloat16.
void WidenInPlace(char* data, int64_t count) {
  for (int64_t i = count - 1; i >= 0; --i) {
    uint16_t half;
    std::memcpy(&half, data + i * 2, sizeof(half));
    const uint32_t word = static_cast<uint32_t>(half) << 16;
    std::memcpy(data + i * 4, &word, sizeof(word));
  }
}

Tensor LoadParam(const Record& record, ShardReader* reader, const std::string& where) {
  const DLDataType dtype = ParseDtype(record.dtype, where);
  const bool widen = record.format == kWidened && record.dtype == "float32";
  if (!widen && record.format != "raw" && record.format != kWidened) {
    throw InputError(where + ": unknown format '" + record.format + "'");
  }
  const int64_t count = Elements(record.shape, where);
  const int64_t stored = widen ? 2 : dtype.bits / 8;
  if (count * stored != record.bytes) {
    throw InputError(where + ": shape " + ShapeText(record.shape) + " of " + record.dtype +
                     " takes " + std::to_string(count * stored) + " bytes in format " +
                     record.format + ", not " + std::to_string(record.bytes));
  }
  Tensor tensor = Tensor::Empty(ffi::Shape(record.shape), dtype, DLDevice{kDLCPU, 0});
  char* data = static_cast<char*>(tensor->data);
  reader->Read(record, data, where);
  if (widen) WidenInPlace(data, count);
  return tensor;
}

}  // namespace

std::vector<WantedParam> WantedParams(const Json& metadata) {
  const std::string where = "the library's metadata";
  std::vector<WantedParam> wanted;
  try {
    for (const Json& param : metadata.At("params", where).List(where)) {
      wanted.push_back({param.At("name", where).Text(where), param.At("dtype", where).Text(where),
                        param.At("shape", where).List(where)});
    }
  } catch (const InputError& error) {
    throw RunError(error.what());
  }
  return wanted;
}

ffi::Array<ffi::Any> LoadParams(const std::string& folder,
                                const std::vector<WantedParam>& wanted) {
  const Index index = ReadIndex(folder);
  ffi::Array<ffi::Any> params;
  std::map<std::string, int64_t> open;
  ShardReader reader;
  for (const WantedParam& param : wanted) {
    const std::string where = folder + ", parameter " + param.name;
    const auto found = index.find(param.name);
    if (found == index.end()) {
      throw InputError(where + ": missing from " + kIndex + ", the model library wants it");
    }
    const Record& record = found->second;
    if (record.dtype != param.dtype) {
      throw InputError(where + ": its dtype is " + record.dtype + ", the model library wants " +
                       param.dtype);
    }
    CheckShape(param, record, &open, where);
    params.push_back(LoadParam(record, &reader, where));
  }
  return params;
}

std::optional<int64_t> VocabularySize(const std::vector<WantedParam>& wanted,
                                      const ffi::Array<ffi::Any>& params) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::string& name = wanted[i].name;
    const bool embedding = name.find("embed_tokens") != std::string::npos ||
                           name.find("wte") != std::string::npos ||
                           name.find("word_embeddings") != std::string::npos;
    if (embedding && wanted[i].shape.size() == 2) return params[i].cast<Tensor>()->shape[0];
  }
  return std::nullopt;
}

}  // namespace rvv_runner
