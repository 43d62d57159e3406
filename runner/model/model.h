// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/runtime/tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/library.h"
#include "model/params.h"
#include "model/roi.h"
#include "model/roundings.h"
#include "model/states.h"
#include "picture/preparation.h"

namespace rvv_runner {

// Room in a KV cache.
struct CacheLimits {
  int64_t sequences = 1;  // of one call
  int64_t tokens = 0;     // of all sequences together
  int64_t chunk = 0;      // of one prefill call
};

// States of a picture [tokens, hidden] that a call reads in place of its tokens' embeddings.
struct Shown {
  int64_t row;  // of the call
  tvm::runtime::Tensor states;
  int64_t first;  // of the states
  int64_t count;
};

// Tokens of one call: those of the first sequence, then those of the next.
struct Rows {
  std::vector<int64_t> sequences;
  std::vector<int64_t> lengths;  // tokens of each sequence
  std::vector<int32_t> tokens;
  std::vector<Shown> shown = {};
};

// A model with its parameters and a KV cache of several sequences, which the caller names.
class Model {
 public:
  static constexpr int64_t kPageTokens = 16;

  // Room for `sequences` of `tokens` each. A page belongs to one sequence, so each sequence is
  // rounded up to whole pages.
  static CacheLimits RoomFor(int64_t sequences, int64_t tokens, int64_t chunk) {
    const int64_t pages = (tokens + kPageTokens - 1) / kPageTokens;
    return {sequences, sequences * pages * kPageTokens, chunk};
  }
  // Slots of recurrent states: each of `sequences` has its own and a checkpoint; one more is for the
  // checkpoint before guesses, and one for a kept sequence that another one is forked from.
  static int64_t StateSlots(int64_t sequences) { return 2 * sequences + 2; }
  // The most tokens of a KV cache of `sequences`, in whole pages: indices of compiled functions have 32
  // bits. INT64_MAX if the metadata lacks the sizes.
  static int64_t MostTokens(const Library& library, int64_t sequences);

  // Throws InputError if a tensor of the cache or of recurrent states would need longer indices.
  Model(const Library& library, tvm::ffi::Array<tvm::ffi::Any> params, const CacheLimits& limits,
        const Region& region);

  // Also records, from now on, the ends of calls, and what a cache in int8 holds of each token.
  void Record(RoundingRecord* record) { record_ = record; }

  // Adds an empty sequence; removes a sequence and frees its pages.
  void Add(int64_t sequence);
  void Remove(int64_t sequence);
  // Adds a sequence `child` that shares the pages of the first `tokens` tokens of `parent`, a number
  // that Reach gave.
  void Fork(int64_t parent, int64_t child, int64_t tokens);
  // Forgets a sequence's last tokens; Reach gave what is left.
  void Drop(int64_t sequence, int64_t tokens);
  // The longest beginning of a sequence, of at most `tokens` tokens, to which it can go back: all of
  // them, or of a model with recurrent states its whole length or that of a checkpoint.
  int64_t Reach(int64_t sequence, int64_t tokens) const;
  // Tokens that a sequence has read.
  int64_t length(int64_t sequence) const { return lengths_.at(sequence); }
  // True if the model has recurrent states. Then Add, Fork and Keep need has_room().
  bool recurrent() const { return recurrent_.has_value(); }
  bool has_room() const { return !recurrent_ || recurrent_->has_room(); }
  // Keeps a checkpoint of a sequence at its length. Does nothing without recurrent states.
  void Keep(int64_t sequence);
  // Gives up the checkpoints of a sequence at `first` tokens and more.
  void ForgetCheckpoints(int64_t sequence, int64_t first);
  // Removes all sequences, also after a failed call.
  void Clear();
  // True if sequences can be forked and shortened, which a sliding window does not allow.
  bool shares() const { return window_ == 0 && !encodes(); }

  // True if rows of the cache can be read and appended: not without the patch of TVM's runtime, nor
  // with a sliding window or recurrent states.
  bool tells_rows() const;
  // What the cache holds of a sequence's tokens from `first` on: for each layer, of each token as
  // many bytes.
  std::string ReadRows(int64_t sequence, int64_t first, int64_t tokens) const;
  // Appends tokens without computing them, but for the first `skipped`: `rows` are those of ReadRows.
  // Returns false if the rows are not of this cache.
  bool AppendRows(int64_t sequence, int64_t tokens, int64_t skipped, const std::string& rows);

  int64_t FreePages() const;
  int64_t pages() const { return pages_; }
  // Bytes of all pages; 0 if the metadata lacks the sizes.
  int64_t bytes() const { return bytes_; }
  // Most sequences of one Decode call; 1 if the library cannot decode a batch.
  int64_t batch() const { return batch_; }

  // Reads tokens with the library's prefill function, or with extend if prefill only reads the
  // beginning of a sequence. Returns float32 logits [vocab] after the last token. Throws RunError
  // if the library returns anything else.
  std::vector<float> Prefill(int64_t sequence, const std::vector<int32_t>& tokens,
                             const std::vector<Shown>& shown = {});
  // The same, and returns the logits after each token. At most scored() tokens.
  std::vector<std::vector<float>> PrefillRows(int64_t sequence, const std::vector<int32_t>& tokens);
  // True if the library reads pictures.
  bool sees() const { return picture_.has_value(); }
  // The states of a picture.
  tvm::runtime::Tensor See(const PreparedPicture& picture) const;
  // True if the library can tell the states of tokens.
  bool embeds() const { return states_ != nullptr || encodes(); }
  // True if it can do nothing else (BERT): a call reads whole texts, and there is no cache.
  bool encodes() const { return encode_ != nullptr; }
  // True if the vectors of texts have the length 1.
  bool normalizes() const { return normalizes_; }
  // Reads tokens of sequences, and returns of each the sum [hidden] of its states after the last
  // norm; of an encoder the pooled states of the text. Throws RunError if the library returns anything
  // but float32 or float16.
  std::vector<std::vector<double>> SumsOfStates(const Rows& rows);
  // Most tokens of one PrefillRows call: its logits take memory, and a library without a function
  // for it takes a decode call for each token.
  int64_t scored() const { return verify_ == nullptr ? 4 : 32; }
  // True if PrefillRows is one call, and what it read can be dropped: guesses can be verified.
  bool verifies() const { return verify_ != nullptr && shares(); }
  // True if PrefillAll is possible.
  bool prefills_together() const { return batch_prefill_ != nullptr; }
  // Reads tokens of at most batch() sequences in one call, of each as many as its length. Returns
  // the logits after the last token of each.
  std::vector<std::vector<float>> PrefillAll(const Rows& rows);
  // Reads one token of each of at most batch() sequences. Returns the logits of each.
  std::vector<std::vector<float>> Decode(const std::vector<int64_t>& sequences,
                                         const std::vector<int32_t>& tokens);

 private:
  // Reads tokens of sequences, and returns the result of `call`. It gets their embeddings
  // [batch, tokens / batch, hidden], `last` if there is one, the cache, recurrent states if the model
  // has some, and the parameters.
  tvm::ffi::Any Run(const tvm::ffi::Function& call, const Rows& rows, int64_t batch, bool marked,
                    const std::optional<tvm::runtime::Tensor>& last = std::nullopt);
  // The pooled states of whole texts, from an encoder.
  std::vector<std::vector<double>> Encoded(const Rows& rows);
  // Appends places for `tokens` tokens, whose keys and values are not computed.
  void Occupy(int64_t sequence, int64_t tokens);
  // Appends tokens with the keys and values of `rows` [layers, tokens, bytes], or with zeros.
  void WriteRows(int64_t sequence, const tvm::runtime::Tensor& rows);
  void AppendZeros(int64_t sequence, int64_t tokens);
  // Where a call finds recurrent states: of each sequence its slot and the row behind its last token,
  // int32 [sequences, 2], and the states of all slots.
  tvm::ffi::Array<tvm::ffi::Any> StatesOf(const Rows& rows) const;
  // Records what the cache holds of the last `tokens` tokens of a sequence.
  void RecordCached(int64_t sequence, int64_t tokens, DLDataType type) const;
  // The function that reads `tokens` more tokens of a sequence.
  const tvm::ffi::Function& Reader(int64_t sequence, size_t tokens) const;
  std::vector<std::vector<float>> Step(const tvm::ffi::Function& call,
                                       const std::vector<int64_t>& sequences,
                                       const std::vector<int32_t>& tokens, size_t rows,
                                       bool marked);

  tvm::ffi::Function encode_;  // of an encoder, which has no other function; else null
  tvm::ffi::Function embed_;
  tvm::ffi::Function see_;  // gives the states of a picture; null without picture_
  tvm::ffi::Function prefill_;
  tvm::ffi::Function extend_;  // null if prefill_ can also continue a sequence
  tvm::ffi::Function verify_;  // gives the logits after each token of a prompt; may be null
  tvm::ffi::Function states_;  // gives the states of tokens; may be null
  tvm::ffi::Function decode_;
  tvm::ffi::Function batch_decode_;
  tvm::ffi::Function batch_prefill_;  // reads any number of tokens of each sequence; may be null
  tvm::ffi::Function begin_forward_;
  tvm::ffi::Function end_forward_;
  tvm::ffi::Function free_pages_;
  tvm::ffi::Array<tvm::ffi::Any> params_;
  tvm::ffi::Any cache_;
  std::optional<CacheSizes> cached_;
  std::optional<Preparation> picture_;
  std::optional<States> recurrent_;
  RoundingRecord* record_ = nullptr;
  std::map<int64_t, int64_t> lengths_;  // tokens of each sequence
  Region region_;
  bool normalizes_ = true;
  bool first_alone_ = false;  // an encoder's vector is the state of the first token, not the mean
  int64_t chunk_;
  int64_t window_;
  int64_t sink_;
  int64_t batch_;
  int64_t pages_;
  int64_t bytes_;
};

}  // namespace rvv_runner
