// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <queue>
#include <tuple>
#include <utility>

#include "input/errors.h"
#include "text/normalize.h"
#include "text/unicode.h"

namespace rvv_runner {
namespace {

// A token of a word that is being merged, as an entry of a linked list.
struct Part {
  uint32_t token;
  uint32_t before;
  uint32_t after;
};

constexpr std::string_view kReplacement = "\uFFFD";
constexpr uint32_t kNone = static_cast<uint32_t>(-1);

// A merge that was possible when it was queued. Its parts may have changed since then.
struct Candidate {
  uint32_t rank;
  uint32_t at;
  const Merge* merge;

  // The queue's top is its largest: the smallest rank, and of equals the leftmost.
  bool operator<(const Candidate& other) const {
    return std::tie(other.rank, other.at) < std::tie(rank, at);
  }
};

std::string Replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t found = std::min(text.find(from, at), text.size());
    out.append(text.substr(at, found - at));
    if (found == text.size()) break;
    out.append(to);
    at = found + from.size();
  }
  return out;
}

// Bytes of a text whose tokens are all counted, also when they are too many.
constexpr size_t kCounted = size_t{256} << 10;

// `all`: that the text has; otherwise there may be more.
void CheckRoom(size_t tokens, size_t most, bool all) {
  if (tokens <= most) return;
  const std::string count = all ? std::to_string(tokens) : "more than " + std::to_string(most);
  throw ContextError("the text has " + count + " tokens; send at most " + std::to_string(most));
}

// The begin of the blanks before a byte of a text, and the end of those behind it.
size_t BlanksBefore(std::string_view text, size_t at) {
  while (at > 0) {
    size_t i = at - 1;
    while (i > 0 && (text[i] & 0xC0) == 0x80) --i;
    if (!IsSpace(DecodeAt(text, i).code)) break;
    at = i;
  }
  return at;
}

size_t BlanksBehind(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Decoded decoded = DecodeAt(text, at);
    if (!IsSpace(decoded.code)) break;
    at += decoded.length;
  }
  return at;
}

// Bytes in the alphabet of byte-level tokenizers: printable ones of Latin-1 are their character, the
// others are U+0100 and on, in order.
std::string Spelled(std::string_view bytes) {
  static const auto kAlphabet = [] {
    std::array<uint32_t, 256> alphabet{};
    for (uint32_t byte = 0, others = 0x100; byte < alphabet.size(); ++byte) {
      const bool printed = byte > ' ' && byte != 0xAD && (byte < 0x7F || byte > 0xA0);
      alphabet[byte] = printed ? byte : others++;
    }
    return alphabet;
  }();
  std::string text;
  for (const char c : bytes) AppendUtf8(kAlphabet[static_cast<unsigned char>(c)], &text);
  return text;
}

// The text of a token of a character vocabulary in an answer.
std::string Shown(const std::string& token) {
  if (const auto byte = ByteOf(token)) return std::string(1, static_cast<char>(*byte));
  return Replaced(token, kBlank, " ");
}

// The same of a piece of a word.
std::string ShownPiece(const std::string& token, const std::string& prefix) {
  const bool goes_on = !prefix.empty() && token.starts_with(prefix);
  return goes_on ? token.substr(prefix.size()) : " " + token;
}

}  // namespace

Tokenizer::Tokenizer(TokenizerFile file)
    : file_(std::move(file)), markers_(MarkersOf(kMarker)), late_markers_(MarkersOf(kLateMarker)) {
  for (size_t i = 0; i < file_.tokens.size(); ++i) {
    const std::string& token = file_.tokens[i];
    const bool one =
        file_.by_character && !token.empty() && DecodeAt(token, 0).length == token.size();
    if ((file_.kinds[i] & kWord) && (file_.whole_words || file_.pieces || one)) {
      words_.emplace(token, static_cast<uint32_t>(i));
    }
    if (file_.by_character) shown_.push_back(Shown(token));
    if (file_.pieces) shown_.push_back(ShownPiece(token, file_.pieces->prefix));
    longest_ = std::max(longest_, token.size());
  }
}

Tokenizer::Markers Tokenizer::MarkersOf(uint8_t kind) const {
  Markers markers(256);
  for (size_t i = 0; i < file_.tokens.size(); ++i) {
    if ((file_.kinds[i] & kind) == 0) continue;
    const std::string& token = file_.tokens[i];
    std::string text = file_.kinds[i] & kSpelled ? Spelled(token) : token;
    const auto first = static_cast<unsigned char>(text[0]);
    markers[first].push_back({static_cast<uint32_t>(i), std::move(text)});
  }
  for (auto& group : markers) {
    std::sort(group.begin(), group.end(), [](const Marker& a, const Marker& b) {
      const size_t of_a = a.text.size(), of_b = b.text.size();
      return of_a != of_b ? of_a > of_b : a.token < b.token;
    });
  }
  return markers;
}

// Finds the leftmost marker each time, and the longest of several. Calls `rest` for each text
// between markers; its second argument is true at the beginning of the text.
template <typename Rest>
void Tokenizer::SplitMarkers(const Markers& markers, std::string_view text, Encoded* out,
                             const Rest& rest) const {
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    const auto& group = markers[static_cast<unsigned char>(text[at])];
    const auto found = std::find_if(group.begin(), group.end(), [&](const Marker& marker) {
      return text.substr(at).starts_with(marker.text);
    });
    if (found == group.end()) {
      ++at;
      continue;
    }
    const size_t after = at + found->text.size();
    const uint8_t kind = file_.kinds[found->token];
    size_t first = at;
    if (kind & kTakesLeft) first = std::max(start, BlanksBefore(text, at));
    if (first > start) rest(text.substr(start, first - start), start == 0);
    const size_t end = kind & kTakesRight ? BlanksBehind(text, after) : after;
    // Skip a marker of blanks that belong to the marker before it.
    if (first < end) out->ids.push_back(static_cast<int32_t>(found->token));
    start = end;
    at = after;
  }
  if (text.size() > start) rest(text.substr(start), start == 0);
}

Encoded Tokenizer::Encode(std::string_view text, size_t most) const {
  if (text.size() <= kCounted && most < SIZE_MAX) {
    Encoded whole = Encode(text);
    CheckRoom(whole.ids.size(), most, true);
    return whole;
  }
  Encoded out;
  SplitMarkers(markers_, text, &out, [&](std::string_view part, bool first) {
    std::string normal;
    if (file_.nfc) {
      normal = Nfc(part);
      part = normal;
    }
    if (file_.pieces) {
      normal = file_.pieces->Changed(part);
      part = normal;
    }
    if (file_.prefix_blank == Prefix::kAlways) {
      normal = std::string(file_.by_character ? kBlank : " ") + std::string(part);
      part = normal;
    }
    SplitMarkers(late_markers_, part, &out, [&](std::string_view plain, bool begins) {
      EncodePart(plain, first && begins, most, &out);
    });
  });
  return out;
}

// Encodes a part without markers; `first` if it is at the beginning.
void Tokenizer::EncodePart(std::string_view part, bool first, size_t most, Encoded* out) const {
  if (file_.pieces) {
    file_.pieces->Split(part, [&](std::string_view word) { EncodePieces(word, out); });
    return CheckRoom(out->ids.size(), most, false);
  }
  const std::string_view blank = file_.by_character ? kBlank : std::string_view(" ");
  std::string text = file_.by_character ? Replaced(part, " ", kBlank) : std::string(part);
  const bool here = file_.prefix_blank == Prefix::kUnlessThere ||
                    (file_.prefix_blank == Prefix::kAtBeginning && first);
  if (here && !text.starts_with(blank)) text.insert(0, blank);
  SplitWords(file_.rule, text, [&](std::string_view word) { EncodeWord(word, most, out); });
}

// The longest tokens one after another, or the unknown one.
void Tokenizer::EncodePieces(std::string_view word, Encoded* out) const {
  const WordPieces& pieces = *file_.pieces;
  const size_t before = out->ids.size();
  const bool long_word = std::ssize(word) > 4 * pieces.longest ||
                         static_cast<int64_t>(Characters(word)) > pieces.longest;
  for (size_t at = 0, end; !long_word && at < word.size(); at = end) {
    const std::string prefix = at > 0 ? pieces.prefix : "";
    auto found = words_.end();
    for (end = word.size(); end > at; --end) {
      // Cut between characters.
      if (end < word.size() && (word[end] & 0xC0) == 0x80) continue;
      found = words_.find(prefix + std::string(word.substr(at, end - at)));
      if (found != words_.end()) break;
    }
    if (found == words_.end()) {
      out->ids.resize(before);
      break;
    }
    out->ids.push_back(static_cast<int32_t>(found->second));
  }
  if (out->ids.size() == before) out->ids.push_back(pieces.unknown);
}

const Merge* Tokenizer::FindMerge(uint32_t left, uint32_t right) const {
  const auto pair_of = [](const Merge& merge) { return std::pair(merge.left, merge.right); };
  const std::pair pair(left, right);
  const auto found = std::ranges::lower_bound(file_.merges, pair, {}, pair_of);
  return found != file_.merges.end() && pair_of(*found) == pair ? &*found : nullptr;
}

// Calls `take` with each token that a word is merged from: its bytes; or its characters, and the
// bytes of characters that have no token.
template <typename Take>
void Tokenizer::Beginnings(std::string_view word, const Take& take) const {
  for (size_t at = 0; at < word.size();) {
    const size_t length = file_.by_character ? DecodeAt(word, at).length : 1;
    const std::string_view character = word.substr(at, length);
    const auto known = file_.by_character ? words_.find(character) : words_.end();
    if (known != words_.end()) {
      take(known->second);
    } else {
      for (const char c : character) take(file_.bytes[static_cast<unsigned char>(c)]);
    }
    at += length;
  }
}

// Merges neighbours in the order of ranks. It takes n log n steps, because a word may be very long.
void Tokenizer::EncodeWord(std::string_view word, size_t most, Encoded* out) const {
  if (const auto whole = words_.find(word); file_.whole_words && whole != words_.end()) {
    out->ids.push_back(static_cast<int32_t>(whole->second));
    return;
  }
  // To merge a very long word takes seconds, and more memory than the text.
  size_t count = 0;
  Beginnings(word, [&](uint32_t token) { count += token != kNoToken; });
  CheckRoom(out->ids.size() + count / longest_, most, false);
  std::vector<Part> parts;
  parts.reserve(count);
  Beginnings(word, [&](uint32_t token) {
    if (token == kNoToken) {
      ++out->dropped;
      return;
    }
    const auto at = static_cast<uint32_t>(parts.size());
    if (at > 0) parts[at - 1].after = at;
    parts.push_back({token, at > 0 ? at - 1 : kNone, kNone});
  });
  std::priority_queue<Candidate> queue;
  const auto note = [&](uint32_t at) {
    if (at == kNone || parts[at].after == kNone) return;
    const Merge* merge = FindMerge(parts[at].token, parts[parts[at].after].token);
    if (merge != nullptr) queue.push({merge->rank, at, merge});
  };
  for (uint32_t at = 0; at < parts.size(); ++at) note(at);
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
  CheckRoom(out->ids.size(), most, false);
}

std::string_view Tokenizer::Bytes(int32_t id) const {
  const auto index = static_cast<size_t>(id);
  if (id < 0 || index >= file_.tokens.size() || (file_.kinds[index] & kSpecial)) return {};
  return shown_.empty() ? file_.tokens[index] : shown_[index];
}

std::string_view Tokenizer::Visible(int32_t id) const {
  const auto index = static_cast<size_t>(id);
  const bool special = id >= 0 && index < size() && (file_.kinds[index] & kSpecial);
  return special ? std::string_view(file_.tokens[index]) : Bytes(id);
}

bool Tokenizer::IsByte(int32_t id) const {
  const auto index = static_cast<size_t>(id);
  if (id < 0 || index >= file_.tokens.size()) return false;
  return file_.by_character && ByteOf(file_.tokens[index]).has_value();
}

std::string AnswerText::Next(int32_t id) {
  const std::string_view bytes = tokenizer_.Bytes(id);
  if (!tokenizer_.by_character()) return Begun(stream_.Feed(bytes));
  if (bytes.empty()) return "";
  if (tokenizer_.IsByte(id)) {
    bytes_ += bytes;
    return "";
  }
  return Begun(TakeBytes() + std::string(bytes));
}

std::string AnswerText::Finish() { return Begun(TakeBytes() + stream_.Finish()); }

std::string AnswerText::TakeBytes() {
  std::string text = std::move(bytes_);
  bytes_.clear();
  if (!FirstBroken(text)) return text;
  std::string broken;
  for (size_t i = 0; i < text.size(); ++i) broken += kReplacement;
  return broken;
}

std::string AnswerText::Begun(std::string text) {
  if (!begun_ && !text.empty()) {
    begun_ = true;
    if (tokenizer_.drops_blank() && text[0] == ' ') text.erase(0, 1);
  }
  return text;
}

std::string TextOf(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  AnswerText text(tokenizer);
  std::string whole;
  for (const int32_t id : ids) {
    const bool special = tokenizer.Bytes(id) != tokenizer.Visible(id);
    whole += special ? text.Finish() + std::string(tokenizer.Visible(id)) : text.Next(id);
  }
  return whole + text.Finish();
}

namespace {

void CheckUtf8(const std::string& text, const std::string& what) {
  if (const auto broken = FirstBroken(text)) {
    throw InputError(what + ": byte " + std::to_string(*broken) + " is not UTF-8");
  }
}

Encoded NotEmpty(Encoded encoded, const std::string& what) {
  if (encoded.ids.empty()) throw InputError(what + ": the text has no tokens in this model");
  return encoded;
}

}  // namespace

Encoded EncodeChat(const Tokenizer& tokenizer, std::span<const Message> messages,
                   const std::string& what, size_t most) {
  for (const Message& message : messages) CheckUtf8(message.content, what);
  return EncodeChat(tokenizer, ChatInputOf(messages), what, most);
}

Encoded EncodeChat(const Tokenizer& tokenizer, const ChatInput& conversation,
                   const std::string& what, size_t most) {
  const std::string text = tokenizer.chat().Text(conversation);
  CheckUtf8(text, what);
  return NotEmpty(tokenizer.Encode(text, most), what);
}

Encoded EncodePrompt(const Tokenizer& tokenizer, const std::string& prompt, bool raw,
                     const std::string& what, size_t most) {
  if (!raw) {
    if (Stripped(prompt).empty()) throw InputError("the prompt is blank");
    const Message message{Message::Role::kUser, prompt};
    return EncodeChat(tokenizer, std::span(&message, 1), what, most);
  }
  CheckUtf8(prompt, what);
  Encoded encoded = tokenizer.Encode(prompt, most);
  encoded.ids.insert(encoded.ids.begin(), tokenizer.first().begin(), tokenizer.first().end());
  encoded.ids.insert(encoded.ids.end(), tokenizer.last().begin(), tokenizer.last().end());
  return NotEmpty(std::move(encoded), what);
}

}  // namespace rvv_runner
