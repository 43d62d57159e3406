// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "engine/prompt_files.h"
#include "model/model.h"

namespace rvv_runner {

// The sequences of a model's KV cache: those that are being computed, and finished ones. Finished
// ones are kept until their pages are needed, so that a prompt with the same beginning need not
// compute it again. A sequence gets its place only if there are pages for its longest answer.
class CacheRoom {
 public:
  // `files` keep beginnings of prompts for the next start; null: nothing does.
  explicit CacheRoom(Model* model, PromptFiles* files = nullptr) : model_(model), files_(files) {}

  struct Place {
    int64_t sequence;  // its id in the cache
    int64_t ready;     // tokens of the prompt that the cache already holds, fewer than all
  };

  // Takes a place for a prompt that may grow to `longest` tokens; nullopt if pages are lacking. It
  // shares beginnings only with sequences of the same owner.
  std::optional<Place> Take(const std::vector<int32_t>& prompt, int64_t longest, size_t owner);
  // The same without a shared beginning.
  std::optional<Place> TakeEmpty(int64_t longest, size_t owner);
  // Notes tokens that were appended to a sequence.
  void Computed(int64_t sequence, std::vector<int32_t>::const_iterator first,
                std::vector<int32_t>::const_iterator last);
  // Notes that a sequence is finished. It is kept until its pages are needed.
  void Release(int64_t sequence);
  // Appends the block of a prompt that follows a sequence, if a file has it. Returns the number of
  // appended tokens, fewer than all.
  int64_t ReadFile(int64_t sequence, const std::vector<int32_t>& prompt);
  // Writes a block of a kept sequence into a file. Returns false if there was none to write.
  bool Store();
  // Keeps a checkpoint of a running sequence's recurrent states; forgets kept sequences for it. Returns
  // false if there is no room.
  bool Keep(int64_t sequence);
  // Empties the cache after a call that failed in the middle.
  void Clear();

  // True if this many tokens fit into the empty cache.
  bool Fits(int64_t tokens) const { return Pages(tokens) <= model_->pages(); }
  int64_t kept() const;
  int64_t pages_used() const { return model_->pages() - model_->FreePages(); }
  // Pages of sequences that are being computed; shared pages count for each of them.
  int64_t pages_running() const;

 private:
  struct Sequence {
    size_t owner;
    std::vector<int32_t> tokens;  // in the cache
    int64_t longest;
    bool running;
    bool stored;    // nothing is left to write
    uint64_t used;  // time of its last use, as a number of Take calls
  };

  using Sequences = std::map<int64_t, Sequence>;

  static int64_t Pages(int64_t tokens) {
    return (tokens + Model::kPageTokens - 1) / Model::kPageTokens;
  }
  bool StoreNext(int64_t name, Sequence* sequence);
  std::pair<Sequences::iterator, int64_t> Likest(const std::vector<int32_t>& prompt, size_t owner);
  Place Fresh(int64_t longest, size_t owner);
  Place GoOn(Sequences::iterator kept, int64_t ready, int64_t longest);
  int64_t Promised() const;
  void Forget(Sequences::iterator sequence);
  Sequences::iterator Oldest(int64_t spared);
  bool MakeRoom(int64_t pages, int64_t spared, bool adds);

  Model* model_;
  PromptFiles* files_;
  Sequences sequences_;
  int64_t next_ = 0;
  uint64_t taken_ = 0;
};

}  // namespace rvv_runner
