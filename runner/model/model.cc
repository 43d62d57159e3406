// SPDX-License-Identifier: Apache-2.0
#include "model/model.h"

#include <tvm/ffi/container/shape.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "input/errors.h"
#include "model/results.h"
#include "model/roi.h"
#include "model/thread_pool.h"

namespace rvv_runner {
namespace {

namespace ffi = tvm::ffi;
using tvm::runtime::Tensor;

constexpr char kReadRows[] = "vm.builtin.paged_attention_kv_cache_read_rows";
constexpr char kCached[] = "the keys and values of the cache";

// Writes states of a picture over the embeddings [..., hidden] of its tokens.
void Show(const Shown& shown, const Tensor& embedded) {
  const Tensor& states = shown.states;
  const int64_t hidden = embedded->shape[embedded->ndim - 1];
  if (states->dtype != embedded->dtype || states->shape[states->ndim - 1] != hidden) {
    throw RunError("the states of a picture are not like embeddings of tokens");
  }
  const int64_t bytes = hidden * states->dtype.bits / 8;
  std::memcpy(FirstOf<char>(embedded) + shown.row * bytes,
              FirstOf<char>(states) + shown.first * bytes,
              static_cast<size_t>(shown.count * bytes));
}

ffi::Function Global(const std::string& name) {
  const auto function = ffi::Function::GetGlobal(name);
  if (!function.has_value()) throw RunError("the runtime has no function " + name);
  return *function;
}

// Indices of compiled functions have 32 bits: a longer tensor would be read at wrong places.
void CheckIndices(const Library& library, const CacheLimits& limits) {
  const int64_t tokens = Model::MostTokens(library, limits.sequences);
  if (limits.tokens > tokens) {
    throw InputError(
        "a KV cache of " + std::to_string(limits.tokens) +
        " tokens needs indices of more than 32 bits; this model's cache has room for " +
        std::to_string(tokens) + " tokens of all sequences together: use a smaller --max-seq");
  }
  const int64_t floats = library.Limit("recurrent_floats", 0);
  if (floats > 0 && Model::StateSlots(limits.sequences) > INT32_MAX / floats) {
    const int64_t none = Model::StateSlots(0), each = Model::StateSlots(1) - none;
    const int64_t most = std::max<int64_t>(0, INT32_MAX / floats - none) / each;
    throw InputError("recurrent states of " + std::to_string(limits.sequences) +
                     " sequences need indices of more than 32 bits; use --parallel " +
                     std::to_string(most) + " or less");
  }
}

}  // namespace

int64_t Model::MostTokens(const Library& library, int64_t sequences) {
  const auto sizes = CacheSizesOf(library);
  if (!sizes || sizes->layer_elements() == 0) return INT64_MAX;
  // The cache adds a page, and with a sliding window two of each sequence.
  const int64_t added = library.Limit("sliding_window_size", 0) > 0 ? 1 + 2 * sequences : 1;
  const int64_t pages = INT32_MAX / (sizes->layer_elements() * kPageTokens);
  return std::max<int64_t>(0, pages - added) * kPageTokens;
}

Model::Model(const Library& library, ffi::Array<ffi::Any> params, const CacheLimits& limits,
             const Region& region)
    : params_(std::move(params)),
      region_(region),
      chunk_(limits.chunk),
      window_(library.Limit("sliding_window_size", 0)),
      sink_(library.Limit("attention_sink_size", 0)),
      batch_(1),
      pages_(0),
      bytes_(0) {
  if (library.encodes()) {
    encode_ = library.Function("encode");
    const std::string where = "the library's metadata, embedding_metadata";
    const Json& about = Field(library.metadata(), "embedding_metadata", where);
    first_alone_ = TextOf(Field(about, "pooling_strategy", where), where) == "cls";
    normalizes_ = Field(about, "normalize", where) == true;
    batch_ = limits.sequences;
    pages_ = limits.tokens / kPageTokens;
    return;
  }
  CheckIndices(library, limits);
  embed_ = library.Function("embed");
  prefill_ = library.Function("prefill");
  decode_ = library.Function("decode");
  begin_forward_ = Global("vm.builtin.kv_state_begin_forward");
  end_forward_ = Global("vm.builtin.kv_state_end_forward");
  free_pages_ = Global("vm.builtin.attention_kv_cache_get_num_available_pages");
  cached_ = CacheSizesOf(library);
  picture_ = PreparationOf(library);
  if (picture_) see_ = library.Function("image_embed");
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
  lengths_[sequence] = 0;
  if (encodes()) return;
  Global("vm.builtin.kv_state_add_sequence")(cache_, sequence);
  if (recurrent_) recurrent_->Add(sequence);
  if (window_ > 0) {
    // MLC-LLM's engine does the same for each sequence of such a model.
    Global("vm.builtin.attention_kv_cache_enable_sliding_window_for_seq")(cache_, sequence, window_,
                                                                          sink_);
  }
  if (region_.depth > 0 && tells_rows()) {
    AppendZeros(sequence, region_.depth);
  } else {
    Occupy(sequence, region_.depth);
  }
}

// New pages hold anything, which in int8 can be factors that are no numbers.
void Model::AppendZeros(int64_t sequence, int64_t tokens) {
  const auto none = Global(kReadRows)(cache_, sequence, 0, 0).cast<Tensor>();
  for (int64_t length = 0; tokens > 0; tokens -= length) {
    length = std::min(tokens, chunk_);
    const auto zeros = Tensor::Empty({none->shape[0], length, none->shape[2]}, none->dtype, kCpu);
    std::memset(zeros->data, 0, ffi::GetDataSize(*zeros.operator->()));
    WriteRows(sequence, zeros);
  }
}

void Model::WriteRows(int64_t sequence, const Tensor& rows) {
  const int64_t first = lengths_.at(sequence);
  Occupy(sequence, rows->shape[1]);
  Global("vm.builtin.paged_attention_kv_cache_write_rows")(cache_, sequence, first, rows);
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
  lengths_.erase(sequence);
  if (encodes()) return;
  Global("vm.builtin.kv_state_remove_sequence")(cache_, sequence);
  if (recurrent_) recurrent_->Remove(sequence);
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
  lengths_.clear();
  if (encodes()) return;
  Global("vm.builtin.kv_state_clear")(cache_);
  if (recurrent_) recurrent_->Clear();
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
  WriteRows(sequence, kept);
  return true;
}

int64_t Model::FreePages() const {
  return encodes() ? pages_ : free_pages_(cache_).cast<int64_t>();
}

std::vector<float> Model::Prefill(int64_t sequence, const std::vector<int32_t>& tokens,
                                  const std::vector<Shown>& shown) {
  const auto& read = Reader(sequence, tokens.size());
  const Rows rows{{sequence}, {std::ssize(tokens)}, tokens, shown};
  return std::move(LogitsOf(Run(read, rows, 1, region_.prefill), 1)[0]);
}

Tensor Model::See(const PreparedPicture& picture) const {
  StartThreadPool();
  const std::vector<float> numbers = NumbersOf(picture, *picture_);
  const int64_t size = picture_->size, tokens = picture_->tokens;
  const ffi::Shape shape({1, 3, size, size});
  const Tensor pixels = Tensor::Empty(shape, DLDataType{kDLFloat, 32, 1}, kCpu);
  std::memcpy(pixels->data, numbers.data(), numbers.size() * sizeof(float));
  const RegionOfInterest call(region_.prefill);
  return Batched(see_(pixels, params_).cast<Tensor>(), tokens, tokens);
}

std::vector<std::vector<float>> Model::PrefillRows(int64_t sequence,
                                                   const std::vector<int32_t>& tokens) {
  if (verify_ != nullptr) return Step(verify_, {sequence}, tokens, tokens.size(), region_.prefill);
  std::vector<std::vector<float>> rows;
  for (const int32_t token : tokens) rows.push_back(Prefill(sequence, {token}));
  return rows;
}

std::vector<std::vector<double>> Model::Encoded(const Rows& rows) {
  if (std::ssize(rows.tokens) > chunk_) {
    throw RunError("the texts have more tokens than one call reads");
  }
  StartThreadPool();
  std::vector<int32_t> positions, bounds = {0};
  for (const int64_t length : rows.lengths) {
    for (int32_t i = 0; i < length; ++i) positions.push_back(i);
    bounds.push_back(static_cast<int32_t>(positions.size()));
  }
  const Tensor tokens = TensorOf(rows.tokens), places = TensorOf(positions);
  std::vector<std::vector<double>> vectors;
  {
    const RegionOfInterest call(region_.prefill);
    const auto states = encode_(tokens, places, TensorOf(bounds), params_).cast<Tensor>();
    vectors = SumsOfRows(states, rows.lengths, first_alone_ ? 1 : INT64_MAX);
  }
  for (size_t i = 0; i < vectors.size(); ++i) {
    lengths_[rows.sequences[i]] += rows.lengths[i];
    const double count = first_alone_ ? 1.0 : static_cast<double>(rows.lengths[i]);
    for (double& each : vectors[i]) each /= count;
  }
  return vectors;
}

std::vector<std::vector<double>> Model::SumsOfStates(const Rows& rows) {
  if (encodes()) return Encoded(rows);
  const ffi::Any result = Run(states_, rows, 1, region_.prefill);
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
  const ffi::Any result = Run(batch_prefill_, rows, 1, false, TensorOf(last));
  return LogitsOf(result, rows.sequences.size());
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
  const auto batch = std::ssize(sequences);
  const std::vector<int64_t> lengths(sequences.size(), std::ssize(tokens) / batch);
  return LogitsOf(Run(call, {sequences, lengths, tokens}, batch, marked), rows);
}

ffi::Any Model::Run(const ffi::Function& call, const Rows& rows, int64_t batch, bool marked,
                    const std::optional<Tensor>& last) {
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
    for (const Shown& shown : rows.shown) Show(shown, embedded);
    type = embedded->dtype;
    begin_forward_(cache_, names, lengths);
    {
      const RegionOfInterest alone(marked && !region_.whole_step);
      std::vector<ffi::Any> arguments = {embedded};
      if (last) arguments.emplace_back(*last);
      arguments.push_back(cache_);
      if (recurrent_) arguments.emplace_back(StatesOf(rows));
      arguments.emplace_back(params_);
      const std::vector<ffi::AnyView> views(arguments.begin(), arguments.end());
      call.CallPacked(views.data(), static_cast<int32_t>(views.size()), &result);
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
