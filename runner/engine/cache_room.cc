// SPDX-License-Identifier: Apache-2.0
#include "engine/cache_room.h"

#include <algorithm>
#include <utility>

namespace rvv_runner {
namespace {

constexpr int64_t kNobody = -1;
constexpr std::optional<CacheRoom::Place> kNoPlace;

int64_t CommonTokens(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  const auto most = std::min(a.size(), b.size());
  return std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(most), b.begin()).first -
         a.begin();
}

// Numbers below 0 are those of pictures (PreparedPicture::Key).
bool InPicture(const std::vector<int32_t>& tokens, int64_t at) {
  return tokens[static_cast<size_t>(at)] < 0;
}

// The length of a beginning of a prompt, shorter than all, without a part of a picture at its end: only the
// whole key tells a picture from others.
int64_t WithoutPart(const std::vector<int32_t>& prompt, int64_t length) {
  if (!InPicture(prompt, length)) return length;
  while (length > 0 && InPicture(prompt, length - 1)) --length;
  return length;
}

// Files hold only what comes before the first picture, whose states take longer than what follows it.
bool ShowsPicture(const std::vector<int32_t>& tokens, int64_t length) {
  return std::any_of(tokens.begin(), tokens.begin() + length, [](int32_t one) { return one < 0; });
}

}  // namespace

std::optional<CacheRoom::Place> CacheRoom::Take(const std::vector<int32_t>& prompt, int64_t longest,
                                                size_t owner) {
  const auto [like, common] = Likest(prompt, owner);
  if (like == sequences_.end()) return TakeEmpty(longest, owner);
  const bool running = like->second.running;
  const bool whole = common == std::ssize(like->second.tokens);
  if (whole && !running) {
    // The sequence continues where it stopped.
    if (MakeRoom(Pages(longest) - Pages(common), like->first, false)) {
      return GoOn(like, common, longest);
    }
  } else if (MakeRoom(Pages(longest) - common / Model::kPageTokens, like->first, true)) {
    const int64_t sequence = next_++;
    model_->Fork(like->first, sequence, common);
    like->second.used = ++taken_;
    std::vector<int32_t> tokens(prompt.begin(), prompt.begin() + common);
    sequences_.emplace(sequence, Sequence{owner, std::move(tokens), longest, true, false, taken_});
    return Place{sequence, common};
  }
  if (running) return kNoPlace;
  // Nothing else can be forgotten: cut this sequence to the common beginning, or forget it.
  const int64_t surplus = std::ssize(like->second.tokens) - common;
  if (surplus > 0) model_->Drop(like->first, surplus);
  like->second.tokens.resize(static_cast<size_t>(common));
  if (MakeRoom(Pages(longest) - Pages(common), like->first, false)) {
    return GoOn(like, common, longest);
  }
  return TakeEmpty(longest, owner);
}

std::optional<CacheRoom::Place> CacheRoom::TakeEmpty(int64_t longest, size_t owner) {
  return MakeRoom(Pages(longest), kNobody, true) ? Fresh(longest, owner) : kNoPlace;
}

// The owner's sequence with the longest common beginning with a prompt, and its length. The last token of
// the prompt does not count, because only a call gives its logits.
std::pair<CacheRoom::Sequences::iterator, int64_t> CacheRoom::Likest(
    const std::vector<int32_t>& prompt, size_t owner) {
  const auto most = static_cast<int64_t>(prompt.size()) - 1;
  auto best = sequences_.end();
  int64_t common = 0;
  for (auto it = sequences_.begin(); it != sequences_.end() && model_->shares(); ++it) {
    if (it->second.owner != owner) continue;
    const int64_t alike =
        WithoutPart(prompt, std::min(most, CommonTokens(it->second.tokens, prompt)));
    const int64_t same = model_->Reach(it->first, alike);
    // Sharing less than a page is not worth a block.
    if (same < Model::kPageTokens || same < common) continue;
    // Among equal lengths, prefer a sequence that can continue as it is.
    const bool whole = same == std::ssize(it->second.tokens) && !it->second.running;
    if (same > common || whole) best = it;
    common = same;
  }
  return {best, common};
}

CacheRoom::Place CacheRoom::Fresh(int64_t longest, size_t owner) {
  const int64_t sequence = next_++;
  model_->Add(sequence);
  sequences_.emplace(sequence, Sequence{owner, {}, longest, true, false, ++taken_});
  return {sequence, 0};
}

CacheRoom::Place CacheRoom::GoOn(Sequences::iterator kept, int64_t ready, int64_t longest) {
  kept->second.longest = longest;
  kept->second.running = true;
  kept->second.used = ++taken_;
  return {kept->first, ready};
}

void CacheRoom::Computed(int64_t sequence, std::vector<int32_t>::const_iterator first,
                         std::vector<int32_t>::const_iterator last) {
  Sequence& computed = sequences_.at(sequence);
  computed.tokens.insert(computed.tokens.end(), first, last);
  computed.stored = false;
}

void CacheRoom::Release(int64_t sequence) {
  const auto found = sequences_.find(sequence);
  found->second.running = false;
  if (!model_->shares() || std::ssize(found->second.tokens) < Model::kPageTokens) Forget(found);
}

int64_t CacheRoom::ReadFile(int64_t name, const std::vector<int32_t>& prompt) {
  if (files_ == nullptr || !model_->tells_rows()) return 0;
  Sequence& sequence = sequences_.at(name);
  const auto ready = std::ssize(sequence.tokens);
  const int64_t skipped = ready % PromptFiles::kBlock, first = ready - skipped;
  // Only a call gives the logits after the last token.
  if (first + PromptFiles::kBlock >= std::ssize(prompt)) return 0;
  if (ShowsPicture(prompt, first + PromptFiles::kBlock)) return 0;
  std::string parent = files_->Root(sequence.owner);
  for (int64_t at = 0; at < first; at += PromptFiles::kBlock) {
    parent = PromptFiles::Next(parent, prompt.data() + at);
  }
  const int32_t* tokens = prompt.data() + first;
  const auto rows = files_->Read(parent, tokens);
  if (!rows || !model_->AppendRows(name, PromptFiles::kBlock, skipped, *rows)) return 0;
  sequence.tokens.insert(sequence.tokens.end(), tokens + skipped, tokens + PromptFiles::kBlock);
  return PromptFiles::kBlock - skipped;
}

bool CacheRoom::Store() {
  if (files_ == nullptr || !model_->tells_rows()) return false;
  for (auto& [name, sequence] : sequences_) {
    if (sequence.running || sequence.stored) continue;
    if (StoreNext(name, &sequence)) return true;
    sequence.stored = true;
  }
  return false;
}

// Writes the first block that has no file. Returns false if there is none, or no room for it.
bool CacheRoom::StoreNext(int64_t name, Sequence* sequence) {
  files_->Begin();
  std::string parent = files_->Root(sequence->owner);
  const auto most = std::ssize(sequence->tokens);
  for (int64_t first = 0; first + PromptFiles::kBlock <= most; first += PromptFiles::kBlock) {
    if (ShowsPicture(sequence->tokens, first + PromptFiles::kBlock)) return false;
    const int32_t* tokens = sequence->tokens.data() + first;
    const std::string block = PromptFiles::Next(parent, tokens);
    if (!files_->Keep(parent, block)) {
      const std::string rows = model_->ReadRows(name, first, PromptFiles::kBlock);
      return files_->Write(parent, tokens, rows);
    }
    parent = block;
  }
  return false;
}

void CacheRoom::Clear() {
  model_->Clear();
  sequences_.clear();
}

int64_t CacheRoom::kept() const {
  return std::count_if(sequences_.begin(), sequences_.end(),
                       [](const auto& entry) { return !entry.second.running; });
}

int64_t CacheRoom::pages_running() const {
  int64_t pages = 0;
  for (const auto& [name, sequence] : sequences_) {
    if (sequence.running) pages += Pages(std::ssize(sequence.tokens));
  }
  return std::min(pages, pages_used());
}

// Pages that running sequences may still need.
int64_t CacheRoom::Promised() const {
  int64_t pages = 0;
  for (const auto& [name, sequence] : sequences_) {
    if (sequence.running) pages += Pages(sequence.longest) - Pages(std::ssize(sequence.tokens));
  }
  return pages;
}

void CacheRoom::Forget(Sequences::iterator sequence) {
  model_->Remove(sequence->first);
  sequences_.erase(sequence);
}

// The kept sequence that was used the longest ago, except the spared one; end() without one.
CacheRoom::Sequences::iterator CacheRoom::Oldest(int64_t spared) {
  auto oldest = sequences_.end();
  for (auto it = sequences_.begin(); it != sequences_.end(); ++it) {
    if (it->second.running || it->first == spared) continue;
    if (oldest == sequences_.end() || it->second.used < oldest->second.used) oldest = it;
  }
  return oldest;
}

// Forgets kept sequences, the longest unused first, until `pages` are free and the model has room
// for another sequence, if it `adds` one. Returns false if that is not so even when only the spared
// one is left.
bool CacheRoom::MakeRoom(int64_t pages, int64_t spared, bool adds) {
  while (model_->FreePages() - Promised() < pages || (adds && !model_->has_room())) {
    const auto oldest = Oldest(spared);
    if (oldest == sequences_.end()) return false;
    Forget(oldest);
  }
  return true;
}

bool CacheRoom::Keep(int64_t sequence) {
  if (!MakeRoom(0, sequence, true)) return false;
  model_->Keep(sequence);
  return true;
}

}  // namespace rvv_runner
