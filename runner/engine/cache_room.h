// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "model/model.h"

namespace rvv_runner {

// The sequences of a model's KV cache: those that are being computed, and finished ones that are
// kept while nobody needs their pages, so that a prompt which begins as one of them need not be
// computed again so far. Pages for a sequence's longest answer are promised when it gets its place.
class CacheRoom {
 public:
  explicit CacheRoom(Model* model) : model_(model) {}

  struct Place {
    int64_t sequence;  // its name in the cache
    int64_t ready;     // tokens of the prompt that are there already, fewer than all
  };

  // A place for a prompt that may grow to `longest` tokens; nothing while the pages are lacking.
  std::optional<Place> Take(const std::vector<int32_t>& prompt, int64_t longest);
  // Notes tokens that are now in the cache, behind the others.
  void Computed(int64_t sequence, std::vector<int32_t>::const_iterator first,
                std::vector<int32_t>::const_iterator last);
  // The sequence is finished: its pages are free for whoever needs them, and kept until then.
  void Release(int64_t sequence);
  // Empties the cache after a call that failed in the middle.
  void Clear();

  // True if so many tokens fit the empty cache.
  bool Fits(int64_t tokens) const { return Pages(tokens) <= model_->pages(); }
  int64_t kept() const;
  int64_t pages_used() const { return model_->pages() - model_->FreePages(); }
  // Of these, by sequences that are being computed; pages that they share count for each.
  int64_t pages_running() const;

 private:
  struct Sequence {
    std::vector<int32_t> tokens;  // in the cache
    int64_t longest;
    bool running;
    uint64_t used;  // when, counted in places taken
  };

  using Sequences = std::map<int64_t, Sequence>;

  static int64_t Pages(int64_t tokens) {
    return (tokens + Model::kPageTokens - 1) / Model::kPageTokens;
  }
  std::pair<Sequences::iterator, int64_t> Likest(const std::vector<int32_t>& prompt);
  Place Fresh(int64_t longest);
  Place GoOn(Sequences::iterator kept, int64_t ready, int64_t longest);
  int64_t Promised() const;
  void Forget(Sequences::iterator sequence);
  bool MakeRoom(int64_t pages, int64_t spared);

  Model* model_;
  Sequences sequences_;
  int64_t next_ = 0;
  uint64_t taken_ = 0;
};

}  // namespace rvv_runner
