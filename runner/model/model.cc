// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include <tvm/ffi/container/shape.h>
#include <tvm/runtime/memory/memory_manager.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <optional>

#include "input/errors.h"
#include "model/roi.h"
#include "model/vector_length.h"

// Told by whoever links a library into this program; absent with a library in a file.
extern "C" {
__attribute__((weak)) extern const int mlc_rvv_required_vlen;
__attribute__((weak)) extern const char mlc_rvv_library_prefix[];
}

namespace rvv_runner {
namespace {

namespace ffi = tvm::ffi;
using tvm::runtime::Tensor;

constexpr DLDevice kCpu{kDLCPU, 0};
constexpr int64_t kPageSize = 16;
constexpr int64_t kSequence = 0;
constexpr char kLoad[] = "vm_load_executable";

ffi::Function Global(const std::string& name) {
  const auto function = ffi::Function::GetGlobal(name);
  if (!function.has_value()) throw RunError("the runtime has no function " + name);
  return *function;
}

ffi::Module LinkedIn() {
  const char* prefix = &mlc_rvv_library_prefix ? mlc_rvv_library_prefix : "";
  const auto module = Global("ffi.SystemLib")(ffi::String(prefix)).cast<ffi::Module>();
  if (!module->GetFunction(kLoad, true).has_value()) {
    throw InputError("no model library is linked into this program; name one with --lib");
  }
  return module;
}

ffi::Module FromFile(const std::string& path) {
  // The loader's own message does not tell a missing file from a bad one.
  if (!std::ifstream(path)) throw InputError("--lib: cannot read " + path);
  std::optional<ffi::Module> module;
  try {
    module = ffi::Module::LoadFromFile(path);
  } catch (const ffi::Error& error) {
    throw InputError("--lib: " + path + " cannot be loaded: " + error.message());
  }
  if (!(*module)->GetFunction(kLoad, true).has_value()) {
    throw InputError("--lib: " + path + " is not a model library: it has no " + kLoad);
  }
  return *module;
}

ffi::Module StartVm(const ffi::Module& library) {
  const auto vm = library->GetFunction(kLoad, true).value()().cast<ffi::Module>();
  constexpr auto kPooled = static_cast<int>(tvm::runtime::memory::AllocatorType::kPooled);
  vm->GetFunction("vm_initialization").value()(static_cast<int>(kDLCPU), 0, kPooled);
  return vm;
}

Tensor TokenTensor(const std::vector<int32_t>& tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  Tensor tensor = Tensor::Empty(ffi::Shape({count}), DLDataType{kDLInt, 32, 1}, kCpu);
  std::memcpy(tensor->data, tokens.data(), tokens.size() * sizeof(int32_t));
  return tensor;
}

// Embeddings [n, hidden] (or [1, n, hidden]) as [1, n, hidden].
Tensor Batched(const Tensor& embedded, int64_t count) {
  if (embedded->ndim == 3) return embedded;
  if (embedded->ndim != 2 || embedded->shape[0] != count) {
    throw RunError("the library's embed function gives no [tokens, hidden]");
  }
  return embedded.CreateView(ffi::Shape({1, count, embedded->shape[1]}), embedded->dtype);
}

std::vector<float> LogitsOf(const ffi::Any& result) {
  const auto logits = result.cast<ffi::Array<ffi::Any>>()[0].cast<Tensor>();
  if (logits->dtype.code != kDLFloat || logits->dtype.bits != 32 || logits->ndim < 1) {
    throw RunError("the library's logits are not float32");
  }
  const int64_t width = logits->shape[logits->ndim - 1];
  int64_t rows = 1;
  for (int i = 0; i + 1 < logits->ndim; ++i) rows *= logits->shape[i];
  if (rows != 1) throw RunError("the library's logits are not one row");
  const auto* first = reinterpret_cast<const float*>(static_cast<const char*>(logits->data) +
                                                     logits->byte_offset);
  std::vector<float> row(first, first + width);
  if (std::any_of(row.begin(), row.end(), [](float v) { return !std::isfinite(v); })) {
    throw RunError("the model's logits hold NaN or infinity");
  }
  return row;
}

}  // namespace

Library::Library(const std::string& path, int64_t check_vlen)
    : library_((CheckVectorLength(std::max<int64_t>(
                    check_vlen,
                    path.empty() && &mlc_rvv_required_vlen ? mlc_rvv_required_vlen : 0)),
                path.empty() ? LinkedIn() : FromFile(path))),
      vm_(StartVm(library_)) {
  metadata_ = Json::Parse(Function("_metadata")().cast<std::string>(), "the library's metadata");
  CheckVectorLength(Limit("vlen", 0));
  for (const char* name : {"embed", "prefill", "decode", "create_tir_paged_kv_cache"}) {
    Function(name);
  }
}

int64_t Library::Limit(const std::string& name, int64_t otherwise) const {
  const Json* field = metadata_.Find(name);
  if (field == nullptr) return otherwise;
  const int64_t value = field->Integer("the library's metadata, " + name);
  return value < 0 ? otherwise : value;
}

ffi::Function Library::Function(const std::string& name) const {
  const auto function = vm_->GetFunction(name);
  if (!function.has_value()) throw InputError("the model library has no function " + name);
  return *function;
}

void Library::ArrangeWeights(const ffi::Array<ffi::Any>& params) const {
  const auto entry = vm_->GetFunction("weights_in_tiles");
  if (!entry.has_value()) return;
  const std::string where = "the library's weights_in_tiles";
  const Json about = Json::Parse((*entry)().cast<std::string>(), where);
  for (const Json& weight : about.At("parameters", where).List(where)) {
    const int64_t index = weight.At("index", where).Integer(where);
    const int64_t item = weight.At("item", where).Integer(where);
    const std::string name = "reorder_weights_" + std::to_string(8 * item);
    const auto reorder = library_->GetFunction(name, true);
    if (!reorder.has_value()) throw InputError("the model library has no function " + name);
    if (index < 0 || index >= static_cast<int64_t>(params.size())) {
      throw InputError(where + ": there is no parameter " + std::to_string(index));
    }
    const Tensor tensor = params[index].cast<Tensor>();
    // Matrices [..., rows, columns] of elements of one, two or four bytes, whatever they mean.
    int64_t count = 1;
    for (int i = 0; i + 2 < tensor->ndim; ++i) count *= tensor->shape[i];
    const int64_t rows = tensor->ndim < 2 ? 1 : tensor->shape[tensor->ndim - 2];
    const int64_t bytes = tensor->shape[tensor->ndim - 1] * (tensor->dtype.bits / 8);
    const DLDataType bits{kDLUInt, static_cast<uint8_t>(8 * item), 1};
    (*reorder)(tensor.CreateView(ffi::Shape({count, rows, bytes / item}), bits));
  }
}

Model::Model(const Library& library, ffi::Array<ffi::Any> params, int64_t max_seq, int64_t chunk,
             const Region& region)
    : embed_(library.Function("embed")),
      prefill_(library.Function("prefill")),
      decode_(library.Function("decode")),
      begin_forward_(Global("vm.builtin.kv_state_begin_forward")),
      end_forward_(Global("vm.builtin.kv_state_end_forward")),
      params_(std::move(params)),
      region_(region) {
  const auto one = [](int64_t size) { return ffi::Shape({size}); };
  const int64_t window = library.Limit("sliding_window_size", 0);
  cache_ = library.Function("create_tir_paged_kv_cache")(one(1), one(max_seq), one(chunk),
                                                         one(kPageSize), one(window > 0 ? 1 : 0));
  Global("vm.builtin.kv_state_add_sequence")(cache_, kSequence);
  if (window > 0) {
    // What MLC-LLM's engine does for every sequence of such a model.
    Global("vm.builtin.attention_kv_cache_enable_sliding_window_for_seq")(
        cache_, kSequence, window, library.Limit("attention_sink_size", 0));
  }
}

std::vector<float> Model::Prefill(const std::vector<int32_t>& tokens) {
  return Step(prefill_, tokens, region_.prefill);
}

std::vector<float> Model::Decode(int32_t token) { return Step(decode_, {token}, region_.decode); }

std::vector<float> Model::Step(const ffi::Function& call, const std::vector<int32_t>& tokens,
                               bool marked) {
  const auto count = static_cast<int64_t>(tokens.size());
  const Tensor ids = TokenTensor(tokens);
  ffi::Any result;
  {
    const RegionOfInterest step(marked && region_.whole_step);
    const Tensor embedded = Batched(embed_(ids, params_).cast<Tensor>(), count);
    begin_forward_(cache_, ffi::Shape({kSequence}), ffi::Shape({count}));
    {
      const RegionOfInterest alone(marked && !region_.whole_step);
      result = call(embedded, cache_, params_);
    }
    end_forward_(cache_);
  }
  return LogitsOf(result);
}

}  // namespace rvv_runner
