// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>

#include "input/errors.h"
#include "text/normalize.h"

namespace rvv_runner {
namespace {

// A token of a word that is being merged, in a list of its neighbours.
struct Part {
  uint32_t token;
  size_t before;
  size_t after;
};

constexpr size_t kNone = static_cast<size_t>(-1);

// A merge that was possible when it was noted: parts may have changed since.
struct Candidate {
  uint32_t rank;
  size_t at;
  const Merge* merge;

  // The queue's top is its largest: the smallest rank, and of equals the leftmost.
  bool operator<(const Candidate& other) const {
    return std::tie(other.rank, other.at) < std::tie(rank, at);
  }
};

}  // namespace

Tokenizer::Tokenizer(TokenizerFile file)
    : file_(std::move(file)), markers_(MarkersOf(kMarker)), late_markers_(MarkersOf(kLateMarker)) {
  for (size_t i = 0; file_.whole_words && i < file_.tokens.size(); ++i) {
    if (file_.kinds[i] & kWord) words_.emplace(file_.tokens[i], static_cast<uint32_t>(i));
  }
}

Tokenizer::Markers Tokenizer::MarkersOf(uint8_t kind) const {
  Markers markers(256);
  for (size_t i = 0; i < file_.tokens.size(); ++i) {
    if ((file_.kinds[i] & kind) == 0) continue;
    markers[static_cast<unsigned char>(file_.tokens[i][0])].push_back(static_cast<uint32_t>(i));
  }
  for (auto& group : markers) {
    std::sort(group.begin(), group.end(), [&](uint32_t a, uint32_t b) {
      const size_t of_a = file_.tokens[a].size(), of_b = file_.tokens[b].size();
      return of_a != of_b ? of_a > of_b : a < b;
    });
  }
  return markers;
}

// The leftmost marker, and of those the longest; what lies between goes to `rest`.
template <typename Rest>
void Tokenizer::SplitMarkers(const Markers& markers, std::string_view text, Encoded* out,
                             const Rest& rest) const {
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    const auto& group = markers[static_cast<unsigned char>(text[at])];
    const auto found = std::find_if(group.begin(), group.end(), [&](uint32_t id) {
      return text.substr(at).starts_with(file_.tokens[id]);
    });
    if (found == group.end()) {
      ++at;
      continue;
    }
    if (at > start) rest(text.substr(start, at - start));
    out->ids.push_back(static_cast<int32_t>(*found));
    at += file_.tokens[*found].size();
    start = at;
  }
  if (text.size() > start) rest(text.substr(start));
}

Encoded Tokenizer::Encode(std::string_view text) const {
  Encoded out;
  SplitMarkers(markers_, text, &out, [&](std::string_view part) {
    std::string normal;
    if (file_.nfc) {
      normal = Nfc(part);
      part = normal;
    }
    SplitMarkers(late_markers_, part, &out, [&](std::string_view plain) {
      for (const std::string_view word : SplitWords(file_.rule, plain)) EncodeWord(word, &out);
    });
  });
  return out;
}

const Merge* Tokenizer::FindMerge(uint32_t left, uint32_t right) const {
  const auto found = std::lower_bound(
      file_.merges.begin(), file_.merges.end(), std::pair(left, right),
      [](const Merge& merge, const auto& pair) {
        return std::tie(merge.left, merge.right) < std::tie(pair.first, pair.second);
      });
  const bool same = found != file_.merges.end() && found->left == left && found->right == right;
  return same ? &*found : nullptr;
}

// Merges neighbours in the order of ranks, in n log n steps: a word may be very long.
void Tokenizer::EncodeWord(std::string_view word, Encoded* out) const {
  if (const auto whole = words_.find(word); whole != words_.end()) {
    out->ids.push_back(static_cast<int32_t>(whole->second));
    return;
  }
  std::vector<Part> parts;
  for (const char c : word) {
    const uint32_t token = file_.bytes[static_cast<unsigned char>(c)];
    if (token == kNoToken) {
      ++out->dropped;
      continue;
    }
    const size_t at = parts.size();
    if (at > 0) parts[at - 1].after = at;
    parts.push_back({token, at > 0 ? at - 1 : kNone, kNone});
  }
  std::priority_queue<Candidate> queue;
  const auto note = [&](size_t at) {
    if (at == kNone || parts[at].after == kNone) return;
    const Merge* merge = FindMerge(parts[at].token, parts[parts[at].after].token);
    if (merge != nullptr) queue.push({merge->rank, at, merge});
  };
  for (size_t at = 0; at < parts.size(); ++at) note(at);
  while (!queue.empty()) {
    const auto [rank, at, merge] = queue.top();
    queue.pop();
    Part& part = parts[at];
    if (part.token != merge->left || part.after == kNone) continue;
    const Part& next = parts[part.after];
    if (next.token != merge->right) continue;
    parts[part.after].token = kNoToken;
    part.token = merge->merged;
    part.after = next.after;
    if (part.after != kNone) parts[part.after].before = at;
    note(part.before);
    note(at);
  }
  for (const Part& part : parts) {
    if (part.token != kNoToken) out->ids.push_back(static_cast<int32_t>(part.token));
  }
}

std::string_view Tokenizer::Bytes(int32_t id) const {
  const auto index = static_cast<size_t>(id);
  if (id < 0 || index >= file_.tokens.size() || (file_.kinds[index] & kSpecial)) return {};
  return file_.tokens[index];
}

namespace {

void CheckUtf8(const std::string& text, const std::string& what) {
  if (const auto broken = FirstBroken(text)) {
    throw InputError(what + ": byte " + std::to_string(*broken) + " is not UTF-8");
  }
}

Encoded NotEmpty(Encoded encoded, const std::string& what) {
  if (encoded.ids.empty()) throw InputError(what + ": it gives the model no token to read");
  return encoded;
}

}  // namespace

Encoded EncodeChat(const Tokenizer& tokenizer, std::span<const Message> messages,
                   const std::string& what) {
  for (const Message& message : messages) CheckUtf8(message.content, what);
  return NotEmpty(tokenizer.Encode(ChatText(tokenizer.chat(), messages)), what);
}

Encoded EncodePrompt(const Tokenizer& tokenizer, const std::string& prompt, bool raw,
                     const std::string& what) {
  if (!raw) {
    const Message message{Message::Role::kUser, prompt};
    return EncodeChat(tokenizer, std::span(&message, 1), what);
  }
  CheckUtf8(prompt, what);
  Encoded encoded = tokenizer.Encode(prompt);
  encoded.ids.insert(encoded.ids.begin(), tokenizer.first().begin(), tokenizer.first().end());
  return NotEmpty(std::move(encoded), what);
}

}  // namespace rvv_runner
