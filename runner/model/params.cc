// SPDX-License-Identifier: Apache-2.0
#include "model/params.h"

#include <tvm/ffi/dtype.h>

#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <set>

#include "input/available_bytes.h"
#include "input/errors.h"
#include "input/json.h"
#include "input/log.h"
#include "input/md5.h"
#include "input/read_file.h"
#include "model/mapped_file.h"
#include "model/thread_pool.h"

namespace rvv_runner {
namespace {

namespace ffi = tvm::ffi;
using tvm::runtime::Tensor;

// Reads records from shards. Keeps the last file open, because neighbours mostly share it.
class ShardReader {
 public:
  explicit ShardReader(bool check) : check_(check) {}

  // Throws if the shard does not have the size of the index. Call it before memory is allocated.
  void CheckSize(const ParamRecord& record, const std::string& where) {
    if (record.shard != path_) OpenShard(record, where);
  }

  void Read(const ParamRecord& record, const std::string& where, char* target) {
    CheckSize(record, where);
    // Just before its parameters are read, while its bytes are still in the kernel's cache.
    if (check_ && !record.shard_md5.empty() && checked_.insert(record.shard).second) {
      CheckDigest(record);
    }
    stream_.seekg(record.offset);
    stream_.read(target, record.bytes);
    if (stream_.gcount() != record.bytes) throw InputError("cannot read " + path_);
  }

 private:
  void OpenShard(const ParamRecord& record, const std::string& where) {
    stream_ = std::ifstream(record.shard, std::ios::binary);
    if (!stream_) throw InputError(where + ": cannot read " + record.shard);
    stream_.seekg(0, std::ios::end);
    const int64_t size = stream_.tellg();
    if (size != record.shard_bytes) {
      throw InputError(record.shard + " has " + std::to_string(size) + " bytes, but " + kIndexFile +
                       " says " + std::to_string(record.shard_bytes));
    }
    path_ = record.shard;
  }

  void CheckDigest(const ParamRecord& record) {
    Md5 digest;
    std::vector<char> block(1 << 20);
    stream_.seekg(0);
    while (stream_.read(block.data(), std::ssize(block)), stream_.gcount() > 0) {
      digest.Add({block.data(), static_cast<size_t>(stream_.gcount())});
    }
    stream_.clear();
    const std::string found = digest.Finish();
    if (found == record.shard_md5) return;
    throw InputError(record.shard + " is damaged: its md5 is " + found + ", but " + kIndexFile +
                     " says " + record.shard_md5 + "; copy the parameters again");
  }

  bool check_;
  std::set<std::string> checked_;
  std::ifstream stream_;
  std::string path_;
};

// Widens in place, from the end, because each float32 lies at or behind its bfloat16.
void WidenInPlace(char* data, int64_t count) {
  for (int64_t i = count - 1; i >= 0; --i) {
    uint16_t half;
    std::memcpy(&half, data + i * 2, sizeof(half));
    const uint32_t word = static_cast<uint32_t>(half) << 16;
    std::memcpy(data + i * 4, &word, sizeof(word));
  }
}

// A parameter whose record was checked.
struct CheckedParam {
  const ParamRecord* record;
  StoredAs stored;
  DLDataType dtype;
  size_t bytes;  // in memory
  std::string where;
};

CheckedParam CheckParam(const ParamRecord& record, const std::string& where, ShardReader* reader) {
  const StoredAs stored = CheckStored(record, where);
  const DLDataType dtype = ffi::StringToDLDataType(record.dtype);
  reader->CheckSize(record, where);
  return {&record, stored, dtype, ffi::GetDataSize(stored.count, dtype), where};
}

// Gives a tensor its block, and keeps the arena while a tensor is in use.
struct ArenaBlock {
  std::shared_ptr<Arena> arena;
  size_t bytes;
  void AllocData(DLTensor* tensor) { tensor->data = arena->Take(bytes); }
  void FreeData(DLTensor*) {}
};

Tensor TensorIn(const std::shared_ptr<Arena>& arena, const CheckedParam& param) {
  return ffi::Tensor::FromNDAlloc(ArenaBlock{arena, param.bytes}, ffi::Shape(param.record->shape),
                                  param.dtype, DLDevice{kDLCPU, 0});
}

// Lets each thread of the pool write to the pages of its share, which then lie in its own node: the
// compiled products share a weight among the threads in the same way.
void WriteFirst(const Tensor& tensor, size_t bytes) {
  constexpr size_t kPage = 4096;
  ForEachShare(bytes, [data = static_cast<char*>(tensor->data)](size_t begin, size_t end) {
    for (size_t at = begin; at < end; at += kPage) data[at] = 0;
  });
}

void ReadParam(const CheckedParam& param, ShardReader* reader, const Tensor& tensor) {
  char* data = static_cast<char*>(tensor->data);
  reader->Read(*param.record, param.where, data);
  if (param.stored.widen) WidenInPlace(data, param.stored.count);
}

// Without this check, Linux gives the memory and kills the process when it is written.
void CheckMemory(size_t bytes) {
  const int64_t available = AvailableBytes();
  if (available == 0 || static_cast<int64_t>(bytes) <= available + FreeSwapBytes()) return;
  throw InputError("not enough memory: the parameters take " + std::to_string(bytes >> 20) +
                   " MiB, and " + std::to_string(available >> 20) +
                   " MiB are available; --map-params DIR leaves them on the disk, in a file in " +
                   "DIR, and reads what a token needs");
}

// Names the content of a mapped file: the parameters, and their order in this library.
std::string KeyOf(const Library& library, const std::string& folder) {
  Md5 key;
  for (const std::string& part :
       {FilesOf(folder).digest, Written(library.metadata()), library.Arrangement()}) {
    key.Add(part + '\n');
  }
  return key.Finish();
}

}  // namespace

ffi::Array<ffi::Any> LoadParams(const std::string& folder, const Library& library, bool check,
                                const std::string& map_folder, size_t nodes) {
  const ParamIndex index = ParseIndex(ReadFile(folder + "/" + kIndexFile), folder);
  std::vector<CheckedParam> checked;
  size_t bytes = 0;
  std::map<std::string, int64_t> open;
  ShardReader reader(check);
  std::set<std::string> without_digest;
  for (const WantedParam& param : WantedParams(library.metadata())) {
    const std::string where = folder + ", parameter " + param.name;
    const auto found = index.find(param.name);
    if (found == index.end()) {
      throw InputError(where + ": missing from " + kIndexFile + ", but the model library needs it");
    }
    const ParamRecord& record = found->second;
    if (check && record.shard_md5.empty()) without_digest.insert(record.shard);
    if (record.dtype != param.dtype) {
      throw InputError(where + ": its dtype is " + record.dtype + ", but the model library needs " +
                       param.dtype);
    }
    CheckShape(param, record, &open, where);
    checked.push_back(CheckParam(record, where, &reader));
    bytes += Arena::BytesOf(checked.back().bytes);
  }
  if (!without_digest.empty()) {
    Log(LogLevel::kWarn, std::string(kIndexFile) + " has no md5sum for " + *without_digest.begin() +
                             (without_digest.size() > 1 ? " and other shards" : "") +
                             ": damaged parameters would not be noticed");
  }
  std::optional<MappedFile> file;
  if (map_folder.empty()) {
    CheckMemory(bytes);
  } else {
    file.emplace(map_folder, KeyOf(library, folder), bytes, check);
  }
  const bool spread = !file && nodes > 1;
  const auto memory = file ? file->memory() : spread ? SmallPages(bytes) : HugePages(bytes);
  const auto arena = std::make_shared<Arena>(memory, bytes);
  ffi::Array<ffi::Any> params;
  for (const CheckedParam& param : checked) {
    params.push_back(TensorIn(arena, param));
    if (spread) WriteFirst(params.back().cast<Tensor>(), param.bytes);
  }
  if (file && file->complete()) return params;
  for (size_t i = 0; i < checked.size(); ++i) {
    ReadParam(checked[i], &reader, params[i].cast<Tensor>());
  }
  library.ArrangeWeights(params);
  if (file) file->Complete();
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
