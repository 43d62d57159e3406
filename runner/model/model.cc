// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include <tvm/ffi/container/shape.h>
#include <tvm/runtime/memory/memory_manager.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>
#include <optional>

#include "input/errors.h"
#include "model/roi.h"
#include "model/thread_pool.h"

// The linked-in libraries, defined by the build that links them: bits in a vector register
// (ascending), 1 if the library needs vectors of halves, and the prefix of its symbols. A row
// without a prefix ends the list. The list is absent if the library is a file.
extern "C" {
struct mlc_rvv_library {
  int vlen;
  int zvfh;
  const char* prefix;
};
__attribute__((weak)) extern const mlc_rvv_library mlc_rvv_libraries[];

// The switch of linked-in kernels that have code for SpacemiT's matrix unit; absent without such.
__attribute__((weak)) extern int mlc_rvv_use_ime;
}

namespace rvv_runner {
namespace {

namespace ffi = tvm::ffi;
using tvm::runtime::Tensor;

constexpr char kReadRows[] = "vm.builtin.paged_attention_kv_cache_read_rows";
constexpr DLDevice kCpu{kDLCPU, 0};
constexpr char kLoad[] = "vm_load_executable";
constexpr char kCached[] = "the keys and values of the cache";

ffi::Function Global(const std::string& name) {
  const auto function = ffi::Function::GetGlobal(name);
  if (!function.has_value()) throw RunError("the runtime has no function " + name);
  return *function;
}

// Variable that keeps the matrix unit out of use: MLC_RVV_IME=0.
bool WithoutMatrixUnit() {
  const char* text = std::getenv("MLC_RVV_IME");
  return text != nullptr && std::string(text) == "0";
}

// A linked-in library, and whether its kernels use the matrix unit.
struct Variant {
  mlc_rvv_library library;
  bool ime;

  VectorUnit Needs() const { return {library.vlen, library.zvfh != 0, ime}; }
};

// The linked-in libraries; one for registers of 256 bits also with the matrix unit, if its kernels
// have code for it.
std::vector<Variant> Variants() {
  if (mlc_rvv_libraries == nullptr) return {{{0, 0, ""}, false}};
  const bool has_ime = &mlc_rvv_use_ime != nullptr && !WithoutMatrixUnit();
  std::vector<Variant> variants;
  for (auto one = mlc_rvv_libraries; one->prefix != nullptr; ++one) {
    variants.push_back({*one, false});
    if (has_ime && one->vlen == 256) variants.push_back({*one, true});
  }
  return variants;
}

ffi::Module LinkedIn(const char* prefix) {
  const auto module = Global("ffi.SystemLib")(ffi::String(prefix)).cast<ffi::Module>();
  if (!module->GetFunction(kLoad, true).has_value()) {
    throw InputError("no model library is linked into this program; name one with --lib");
  }
  return module;
}

ffi::Module FromFile(const std::string& path) {
  // The loader reports the same error for a missing file and a bad one.
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

// Keeps this process on those CPUs that can run code that needs this unit, and returns them.
std::vector<Cpu> Settle(const std::vector<Cpu>& cpus, const VectorUnit& needed) {
  std::vector<Cpu> fit = CpusThatRun(cpus, needed);
  StayOn(fit);
  return fit;
}

// Opens the library, and sets `vlen` to the bits in a vector register that it is known to need, and
// `cpus` to those that can run it.
ffi::Module Open(const std::string& path, int64_t check_vlen, int64_t* vlen,
                 std::vector<Cpu>* cpus) {
  const std::vector<Variant> variants =
      path.empty() ? Variants() : std::vector<Variant>{{{0, 0, ""}, false}};
  std::vector<VectorUnit> needs;
  for (const Variant& one : variants) needs.push_back(one.Needs());
  const bool matrix = std::any_of(needs.begin(), needs.end(), [](auto& unit) { return unit.ime; });
  std::vector<Cpu> all = ProbeCpus(matrix);
  size_t best = 0;
  VectorUnit needed;
  const auto settle = [&] {
    best = BestLibrary(all, needs);
    needed = needs[best];
    needed.bits = std::max(check_vlen, needed.bits);
    *cpus = Settle(all, needed);
  };
  try {
    settle();
  } catch (const RunError&) {
    // A gate that let the probes through may refuse this thread.
    if (std::erase_if(all, [](const Cpu& cpu) { return cpu.gated; }) == 0) throw;
    settle();
  }
  if (needed.ime) mlc_rvv_use_ime = 1;
  *vlen = variants[best].library.vlen;
  return path.empty() ? LinkedIn(variants[best].library.prefix) : FromFile(path);
}

ffi::Module StartVm(const ffi::Module& library) {
  const auto vm = library->GetFunction(kLoad, true).value()().cast<ffi::Module>();
  constexpr auto kPooled = static_cast<int>(tvm::runtime::memory::AllocatorType::kPooled);
  vm->GetFunction("vm_initialization").value()(static_cast<int>(kDLCPU), 0, kPooled);
  return vm;
}

Tensor TensorOf(const std::vector<int32_t>& numbers) {
  Tensor tensor = Tensor::Empty(ffi::Shape({std::ssize(numbers)}), DLDataType{kDLInt, 32, 1}, kCpu);
  std::memcpy(tensor->data, numbers.data(), numbers.size() * sizeof(int32_t));
  return tensor;
}

// Reshapes embeddings [n, hidden] or [1, n, hidden] to [batch, n / batch, hidden].
Tensor Batched(const Tensor& embedded, int64_t batch, int64_t count) {
  const int64_t hidden = embedded->ndim > 0 ? embedded->shape[embedded->ndim - 1] : 0;
  const bool flat = embedded->ndim == 2 && embedded->shape[0] == count;
  const bool one = embedded->ndim == 3 && embedded->shape[0] == 1 && embedded->shape[1] == count;
  if (!flat && !one)
    throw RunError("the library's embed function does not return [tokens, hidden]");
  return embedded.CreateView(ffi::Shape({batch, count / batch, hidden}), embedded->dtype);
}

// The rows of logits, one for each sequence.
std::vector<std::vector<float>> LogitsOf(const ffi::Any& result, size_t count) {
  const auto logits = result.cast<ffi::Array<ffi::Any>>()[0].cast<Tensor>();
  if (logits->dtype.code != kDLFloat || logits->dtype.bits != 32 || logits->ndim < 1) {
    throw RunError("the library's logits are not float32");
  }
  const int64_t width = logits->shape[logits->ndim - 1];
  int64_t rows = 1;
  for (int i = 0; i + 1 < logits->ndim; ++i) rows *= logits->shape[i];
  if (rows != static_cast<int64_t>(count)) {
    throw RunError("the library's logits do not have one row for each sequence");
  }
  const auto* first =
      reinterpret_cast<const float*>(static_cast<const char*>(logits->data) + logits->byte_offset);
  std::vector<std::vector<float>> all;
  for (int64_t i = 0; i < rows; ++i, first += width) {
    const auto& row = all.emplace_back(first, first + width);
    if (std::any_of(row.begin(), row.end(), [](float v) { return !std::isfinite(v); })) {
      throw RunError("the model's logits hold NaN or infinity");
    }
  }
  return all;
}

// The value of a finite float16.
float FromHalf(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float part = static_cast<float>(fraction);
  const float magnitude = exponent == 31  ? std::numeric_limits<float>::infinity()
                          : exponent == 0 ? std::ldexp(part, -24)
                                          : std::ldexp(1024.0f + part, exponent - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

// Elements of a tensor of float32 or float16. Throws RunError, which names `what`, for other types.
std::vector<float> FloatsOf(const Tensor& tensor, const char* what) {
  const bool halves = tensor->dtype.bits == 16;
  if (tensor->dtype.code != kDLFloat || (!halves && tensor->dtype.bits != 32)) {
    throw RunError(std::string(what) + " are neither float32 nor float16");
  }
  int64_t count = 1;
  for (int i = 0; i < tensor->ndim; ++i) count *= tensor->shape[i];
  const void* first = static_cast<const char*>(tensor->data) + tensor->byte_offset;
  if (!halves) return {static_cast<const float*>(first), static_cast<const float*>(first) + count};
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(FromHalf(static_cast<const uint16_t*>(first)[i]));
  }
  return values;
}

// The sums of rows of states [..., hidden], of as many rows as each length says.
std::vector<std::vector<double>> SumsOfRows(const Tensor& states,
                                            const std::vector<int64_t>& lengths) {
  const std::vector<float> values = FloatsOf(states, "the library's states");
  const auto width = static_cast<size_t>(states->ndim > 0 ? states->shape[states->ndim - 1] : 0);
  const auto rows = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  if (width == 0 || values.size() != static_cast<size_t>(rows) * width) {
    throw RunError("the library's states are not of each token");
  }
  std::vector<std::vector<double>> sums;
  auto value = values.begin();
  for (const int64_t length : lengths) {
    std::vector<double>& sum = sums.emplace_back(width);
    for (size_t i = 0; i < static_cast<size_t>(length) * width; ++i, ++value) {
      if (!std::isfinite(*value)) throw RunError("the model's states hold NaN or infinity");
      sum[i % width] += *value;
    }
  }
  return sums;
}

// The sizes that the metadata names; nullopt if it lacks one.
std::optional<CacheSizes> CacheSizesOf(const Library& library) {
  const Json* about = Find(library.metadata(), "kv_cache");
  if (about == nullptr) return std::nullopt;
  CacheSizes sizes;
  for (const auto& [name, size] : {std::pair{"num_hidden_layers", &sizes.layers},
                                   {"num_key_value_heads", &sizes.heads},
                                   {"head_dim", &sizes.width},
                                   {"row_bytes", &sizes.row_bytes}}) {
    const Json* field = Find(*about, name);
    if (field == nullptr) return std::nullopt;
    *size = IntegerOf(*field, "the library's metadata, kv_cache");
  }
  return sizes;
}

}  // namespace

int64_t TokenBytes(const Library& library) {
  const auto sizes = CacheSizesOf(library);
  return sizes ? sizes->bytes() : 0;
}

int64_t StateBytes(const Library& library) {
  return library.Limit("recurrent_floats", 0) * static_cast<int64_t>(sizeof(float));
}

std::string DeviceCounters() {
  const auto counters = ffi::Function::GetGlobal("mlc_rvv.accelerator.counters");
  return counters.has_value() ? std::string((*counters)().cast<ffi::String>()) : "null";
}

Library::Library(const std::string& path, int64_t check_vlen,
                 const std::vector<std::string>& functions)
    : library_(Open(path, check_vlen, &vlen_, &cpus_)), vm_(StartVm(library_)) {
  metadata_ = ParseJson(Function("_metadata")().cast<std::string>(), "the library's metadata");
  vlen_ = std::max(vlen_, Limit("vlen", 0));
  // The metadata can name a unit that the link did not.
  cpus_ = Settle(cpus_, {vlen_, Limit("zvfh", 0) != 0, false});
  for (const std::string& name : functions) Function(name);
}

int64_t Library::Limit(const std::string& name, int64_t otherwise) const {
  const Json* field = Find(metadata_, name);
  if (field == nullptr) return otherwise;
  const int64_t value = IntegerOf(*field, "the library's metadata, " + name);
  return value < 0 ? otherwise : value;
}

bool Library::Has(const std::string& name) const { return vm_->GetFunction(name).has_value(); }

ffi::Function Library::Function(const std::string& name) const {
  const auto function = vm_->GetFunction(name);
  if (!function.has_value()) throw InputError("the model library has no function " + name);
  return *function;
}

void Library::ArrangeWeights(const ffi::Array<ffi::Any>& params) const {
  const auto entry = vm_->GetFunction("weights_in_tiles");
  if (!entry.has_value()) return;
  const std::string where = "the library's weights_in_tiles";
  const Json about = ParseJson((*entry)().cast<std::string>(), where);
  for (const Json& weight : ListOf(Field(about, "parameters", where), where)) {
    const int64_t index = IntegerOf(Field(weight, "index", where), where);
    const int64_t item = IntegerOf(Field(weight, "item", where), where);
    const std::string name = "reorder_weights_" + std::to_string(8 * item);
    const auto reorder = library_->GetFunction(name, true);
    if (!reorder.has_value()) throw InputError("the model library has no function " + name);
    if (index < 0 || index >= static_cast<int64_t>(params.size())) {
      throw InputError(where + ": there is no parameter " + std::to_string(index));
    }
    const Tensor tensor = params[index].cast<Tensor>();
    // The function reorders matrices [..., rows, columns] of elements of one, two or four bytes.
    int64_t count = 1;
    for (int i = 0; i + 2 < tensor->ndim; ++i) count *= tensor->shape[i];
    const int64_t rows = tensor->ndim < 2 ? 1 : tensor->shape[tensor->ndim - 2];
    const int64_t bytes = tensor->shape[tensor->ndim - 1] * (tensor->dtype.bits / 8);
    const DLDataType bits{kDLUInt, static_cast<uint8_t>(8 * item), 1};
    (*reorder)(tensor.CreateView(ffi::Shape({count, rows, bytes / item}), bits));
  }
}

Model::Model(const Library& library, ffi::Array<ffi::Any> params, const CacheLimits& limits,
             const Region& region)
    : embed_(library.Function("embed")),
      prefill_(library.Function("prefill")),
      decode_(library.Function("decode")),
      begin_forward_(Global("vm.builtin.kv_state_begin_forward")),
      end_forward_(Global("vm.builtin.kv_state_end_forward")),
      free_pages_(Global("vm.builtin.attention_kv_cache_get_num_available_pages")),
      params_(std::move(params)),
      region_(region),
      chunk_(limits.chunk),
      window_(library.Limit("sliding_window_size", 0)),
      sink_(library.Limit("attention_sink_size", 0)),
      batch_(1) {
  cached_ = CacheSizesOf(library);
  if (library.Has("extend")) extend_ = library.Function("extend");
  if (library.Has("batch_verify") && extend_ == nullptr) {
    verify_ = library.Function("batch_verify");
  }
  // Latent attention: as in Reader, a function for a prompt does not see the cache.
  if (library.Has("prefill_to_last_hidden_states") && extend_ == nullptr) {
    states_ = library.Function("prefill_to_last_hidden_states");
  }
  if (library.Has("batch_decode")) {
    batch_ = std::max<int64_t>(1, library.Limit("max_batch_size", 1));
    if (batch_ > 1) batch_decode_ = library.Function("batch_decode");
  }
  if (batch_ > 1 && library.Has("batch_prefill") && extend_ == nullptr) {
    batch_prefill_ = library.Function("batch_prefill");
  }
  const auto one = [](int64_t size) { return ffi::Shape({size}); };
  cache_ = library.Function("create_tir_paged_kv_cache")(one(limits.sequences), one(limits.tokens),
                                                         one(limits.chunk), one(kPageTokens),
                                                         one(window_ > 0 ? 1 : 0));
  if (const int64_t floats = library.Limit("recurrent_floats", 0); floats > 0) {
    recurrent_.emplace(StateSlots(limits.sequences), floats);
  }
  pages_ = FreePages();
  bytes_ = pages_ * kPageTokens * TokenBytes(library);
}

void Model::Add(int64_t sequence) {
  Global("vm.builtin.kv_state_add_sequence")(cache_, sequence);
  if (recurrent_) recurrent_->Add(sequence);
  lengths_[sequence] = 0;
  if (window_ > 0) {
    // MLC-LLM's engine does the same for each sequence of such a model.
    Global("vm.builtin.attention_kv_cache_enable_sliding_window_for_seq")(cache_, sequence, window_,
                                                                          sink_);
  }
  Occupy(sequence, region_.depth);
}

void Model::Occupy(int64_t sequence, int64_t tokens) {
  for (int64_t length = 0; tokens > 0; tokens -= length) {
    length = std::min(tokens, chunk_);
    begin_forward_(cache_, ffi::Shape({sequence}), ffi::Shape({length}));
    end_forward_(cache_);
    lengths_[sequence] += length;
  }
}

void Model::Remove(int64_t sequence) {
  Global("vm.builtin.kv_state_remove_sequence")(cache_, sequence);
  if (recurrent_) recurrent_->Remove(sequence);
  lengths_.erase(sequence);
}

void Model::Fork(int64_t parent, int64_t child, int64_t tokens) {
  Global("vm.builtin.kv_state_fork_sequence")(cache_, parent, child, tokens);
  if (recurrent_) recurrent_->Fork(parent, child, tokens);
  lengths_[child] = tokens;
}

void Model::Drop(int64_t sequence, int64_t tokens) {
  Global("vm.builtin.kv_state_popn")(cache_, sequence, tokens);
  lengths_[sequence] -= tokens;
  if (recurrent_) recurrent_->GoBack(sequence, lengths_[sequence]);
}

int64_t Model::Reach(int64_t sequence, int64_t tokens) const {
  const int64_t length = lengths_.at(sequence);
  if (!recurrent_ || tokens >= length) return std::min(tokens, length);
  return recurrent_->Reach(sequence, tokens);
}

void Model::Keep(int64_t sequence) {
  if (recurrent_) recurrent_->Keep(sequence, lengths_.at(sequence));
}

void Model::ForgetCheckpoints(int64_t sequence, int64_t first) {
  if (recurrent_) recurrent_->Forget(sequence, first);
}

void Model::Clear() {
  Global("vm.builtin.kv_state_clear")(cache_);
  if (recurrent_) recurrent_->Clear();
  lengths_.clear();
}

bool Model::tells_rows() const {
  return shares() && !recurrent() && ffi::Function::GetGlobal(kReadRows).has_value();
}

std::string Model::ReadRows(int64_t sequence, int64_t first, int64_t tokens) const {
  const auto rows = Global(kReadRows)(cache_, sequence, first, first + tokens).cast<Tensor>();
  return {static_cast<const char*>(rows->data), ffi::GetDataSize(*rows.operator->())};
}

bool Model::AppendRows(int64_t sequence, int64_t tokens, int64_t skipped, const std::string& rows) {
  const auto none = Global(kReadRows)(cache_, sequence, 0, 0).cast<Tensor>();
  const int64_t layers = none->shape[0], bytes = none->shape[2], added = tokens - skipped;
  if (std::ssize(rows) != layers * tokens * bytes) return false;
  const Tensor kept = Tensor::Empty({layers, added, bytes}, none->dtype, kCpu);
  for (int64_t layer = 0; layer < layers; ++layer) {
    std::memcpy(static_cast<char*>(kept->data) + layer * added * bytes,
                rows.data() + (layer * tokens + skipped) * bytes,
                static_cast<size_t>(added * bytes));
  }
  const int64_t first = lengths_.at(sequence);
  Occupy(sequence, added);
  Global("vm.builtin.paged_attention_kv_cache_write_rows")(cache_, sequence, first, kept);
  return true;
}

int64_t Model::FreePages() const { return free_pages_(cache_).cast<int64_t>(); }

std::vector<float> Model::Prefill(int64_t sequence, const std::vector<int32_t>& tokens) {
  const auto& read = Reader(sequence, tokens.size());
  return std::move(Step(read, {sequence}, tokens, 1, region_.prefill)[0]);
}

std::vector<std::vector<float>> Model::PrefillRows(int64_t sequence,
                                                   const std::vector<int32_t>& tokens) {
  if (verify_ != nullptr) return Step(verify_, {sequence}, tokens, tokens.size(), region_.prefill);
  std::vector<std::vector<float>> rows;
  for (const int32_t token : tokens) rows.push_back(Prefill(sequence, {token}));
  return rows;
}

std::vector<std::vector<double>> Model::SumsOfStates(const Rows& rows) {
  const auto call = [&](const Tensor& embedded) -> ffi::Any {
    if (recurrent_) return states_(embedded, cache_, StatesOf(rows), params_);
    return states_(embedded, cache_, params_);
  };
  const ffi::Any result = Run(call, rows, 1, region_.prefill);
  return SumsOfRows(result.cast<ffi::Array<ffi::Any>>()[0].cast<Tensor>(), rows.lengths);
}

const ffi::Function& Model::Reader(int64_t sequence, size_t tokens) const {
  // Latent attention: prefill does not see the cache. extend combines the cache and the new tokens,
  // but the cache already holds a single new token.
  if (extend_ == nullptr || lengths_.at(sequence) == 0) return prefill_;
  return tokens == 1 ? decode_ : extend_;
}

std::vector<std::vector<float>> Model::PrefillAll(const Rows& rows) {
  std::vector<int32_t> last;
  for (const int64_t length : rows.lengths) {
    last.push_back((last.empty() ? -1 : last.back()) + static_cast<int32_t>(length));
  }
  const auto call = [&](const Tensor& embedded) -> ffi::Any {
    if (recurrent_) {
      return batch_prefill_(embedded, TensorOf(last), cache_, StatesOf(rows), params_);
    }
    return batch_prefill_(embedded, TensorOf(last), cache_, params_);
  };
  return LogitsOf(Run(call, rows, 1, false), rows.sequences.size());
}

std::vector<std::vector<float>> Model::Decode(const std::vector<int64_t>& sequences,
                                              const std::vector<int32_t>& tokens) {
  // One sequence takes the faster way: a matrix by a vector.
  const auto& call = sequences.size() == 1 ? decode_ : batch_decode_;
  return Step(call, sequences, tokens, sequences.size(), region_.decode);
}

std::vector<std::vector<float>> Model::Step(const ffi::Function& call,
                                            const std::vector<int64_t>& sequences,
                                            const std::vector<int32_t>& tokens, size_t rows,
                                            bool marked) {
  return LogitsOf(Run(call, sequences, tokens, marked), rows);
}

ffi::Any Model::Run(const ffi::Function& call, const std::vector<int64_t>& sequences,
                    const std::vector<int32_t>& tokens, bool marked) {
  const auto batch = std::ssize(sequences);
  const std::vector<int64_t> lengths(sequences.size(), std::ssize(tokens) / batch);
  const Rows rows{sequences, lengths, tokens};
  const auto read = [&](const Tensor& embedded) -> ffi::Any {
    if (recurrent_) return call(embedded, cache_, StatesOf(rows), params_);
    return call(embedded, cache_, params_);
  };
  return Run(read, rows, batch, marked);
}

ffi::Any Model::Run(const std::function<ffi::Any(const Tensor&)>& call, const Rows& rows,
                    int64_t batch, bool marked) {
  StartThreadPool();
  const Tensor ids = TensorOf(rows.tokens);
  const ffi::Shape names(rows.sequences);
  const ffi::Shape lengths(rows.lengths);
  ffi::Any result;
  DLDataType type;
  {
    const RegionOfInterest step(marked && region_.whole_step);
    const auto embedded =
        Batched(embed_(ids, params_).cast<Tensor>(), batch, std::ssize(rows.tokens));
    type = embedded->dtype;
    begin_forward_(cache_, names, lengths);
    {
      const RegionOfInterest alone(marked && !region_.whole_step);
      result = call(embedded);
    }
    end_forward_(cache_);
  }
  for (size_t i = 0; i < rows.sequences.size(); ++i) {
    lengths_[rows.sequences[i]] += rows.lengths[i];
    if (record_ != nullptr && cached_ && cached_->int8()) {
      RecordCached(rows.sequences[i], rows.lengths[i], type);
    }
  }
  if (record_ != nullptr) record_->EndCall();
  return result;
}

ffi::Array<ffi::Any> Model::StatesOf(const Rows& rows) const {
  std::vector<int32_t> places;
  int64_t end = 0;
  for (size_t i = 0; i < rows.sequences.size(); ++i) {
    end += rows.lengths[i];
    places.push_back(static_cast<int32_t>(recurrent_->slot(rows.sequences[i])));
    places.push_back(static_cast<int32_t>(end));
  }
  const Tensor flat = TensorOf(places);
  const ffi::Shape shape({std::ssize(rows.sequences), 2});
  return {flat.CreateView(shape, flat->dtype), recurrent_->tensor()};
}

void Model::RecordCached(int64_t sequence, int64_t tokens, DLDataType type) const {
  const int64_t end = lengths_.at(sequence);
  const ffi::Shape shape({cached_->layers, tokens, cached_->heads, cached_->width});
  const Tensor keys = Tensor::Empty(shape, type, kCpu), values = Tensor::Empty(shape, type, kCpu);
  Global("vm.builtin.attention_kv_cache_debug_get_kv")(cache_, sequence, end - tokens, end, keys,
                                                       values);
  const std::vector<float> of_keys = FloatsOf(keys, kCached), of_values = FloatsOf(values, kCached);
  const auto size = [](int64_t number) { return static_cast<uint32_t>(number); };
  record_->AddTokens({size(cached_->layers), size(tokens), size(cached_->heads),
                      size(cached_->width), of_keys.data(), of_values.data()});
}

}  // namespace rvv_runner
