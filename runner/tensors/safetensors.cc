// SPDX-License-Identifier: Apache-2.0
#include "tensors/safetensors.h"

#include <bit>
#include <cstring>
#include <limits>

#include "input/errors.h"
#include "input/json.h"

namespace rvv_runner {
namespace {

static_assert(std::endian::native == std::endian::little, "values are little-endian in the file");

constexpr size_t kLength = sizeof(uint64_t);
// A name in the header that is not a tensor.
constexpr char kMetadata[] = "__metadata__";

struct Dtype {
  const char* name;     // the format's
  const char* runtime;  // TVM's
  int64_t bytes;
};

constexpr Dtype kDtypes[] = {
    {"F32", "float32", 4}, {"F64", "float64", 8}, {"F16", "float16", 2}, {"I64", "int64", 8},
    {"I32", "int32", 4},   {"I16", "int16", 2},   {"I8", "int8", 1},     {"U8", "uint8", 1},
    {"U16", "uint16", 2},  {"U32", "uint32", 4},  {"U64", "uint64", 8},  {"BOOL", "bool", 1},
};

const Dtype& DtypeOf(const std::string& name, const std::string& where) {
  for (const Dtype& dtype : kDtypes) {
    if (name == dtype.name) return dtype;
  }
  throw InputError(where + ": the runner cannot read dtype " + name);
}

// The bytes of a tensor. Throws InputError if a size is negative or the product overflows.
int64_t BytesOf(const std::vector<int64_t>& shape, int64_t item, const std::string& where) {
  int64_t bytes = item;
  for (const int64_t size : shape) {
    if (size < 0) throw InputError(where + ": a size is below zero");
    if (size != 0 && bytes > std::numeric_limits<int64_t>::max() / size) {
      throw InputError(where + ": its shape is too large");
    }
    bytes *= size;
  }
  return bytes;
}

TensorBytes ReadTensor(const Json& about, std::string_view data, const std::string& where) {
  const Dtype& dtype = DtypeOf(TextOf(Field(about, "dtype", where), where), where);
  TensorBytes tensor{dtype.runtime, {}, {}};
  for (const Json& size : ListOf(Field(about, "shape", where), where)) {
    tensor.shape.push_back(IntegerOf(size, where));
  }
  const Json& ends = ListOf(Field(about, "data_offsets", where), where);
  if (ends.size() != 2) throw InputError(where + ": data_offsets must be two numbers");
  const int64_t begin = IntegerOf(ends[0], where), end = IntegerOf(ends[1], where);
  if (begin < 0 || end < begin || end > static_cast<int64_t>(data.size())) {
    throw InputError(where + ": its bytes lie outside the file");
  }
  if (end - begin != BytesOf(tensor.shape, dtype.bytes, where)) {
    throw InputError(where + ": its shape and dtype do not take " + std::to_string(end - begin) +
                     " bytes");
  }
  tensor.bytes = data.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  return tensor;
}

}  // namespace

std::map<std::string, TensorBytes> ParseSafetensors(std::string_view text,
                                                    const std::string& where) {
  if (text.size() < kLength) throw InputError(where + ": too short for a safetensors file");
  uint64_t length = 0;
  std::memcpy(&length, text.data(), kLength);
  if (length > text.size() - kLength) {
    throw InputError(where + ": its header is longer than the file; is it a safetensors file?");
  }
  const Json index = ParseJson(text.substr(kLength, length), where);
  const std::string_view data = text.substr(kLength + length);
  std::map<std::string, TensorBytes> tensors;
  for (const auto& [name, about] : TableOf(index, where).items()) {
    if (name == kMetadata) continue;
    tensors.emplace(name, ReadTensor(about, data, where + ", tensor " + name));
  }
  return tensors;
}

std::string MakeSafetensors(const std::vector<std::pair<std::string, TensorBytes>>& tensors) {
  OrderedJson about = OrderedJson::object();
  size_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const char* dtype = nullptr;
    for (const Dtype& known : kDtypes) {
      if (tensor.dtype == known.runtime) dtype = known.name;
    }
    if (dtype == nullptr) throw RunError(name + ": safetensors has no dtype " + tensor.dtype);
    const size_t end = offset + tensor.bytes.size();
    about[name] = {{"dtype", dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string header = WrittenInOrder(about);
  // Values begin at a multiple of eight.
  header.append((kLength - header.size() % kLength) % kLength, ' ');
  const uint64_t length = header.size();
  std::string text(reinterpret_cast<const char*>(&length), kLength);
  text.reserve(kLength + header.size() + offset);
  text += header;
  for (const auto& [name, tensor] : tensors) text += tensor.bytes;
  return text;
}

}  // namespace rvv_runner
