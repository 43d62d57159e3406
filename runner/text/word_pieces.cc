// SPDX-License-Identifier: Apache-2.0
#include "text/word_pieces.h"

#include <algorithm>

#include "input/errors.h"
#include "input/utf8.h"
#include "text/unicode.h"

namespace rvv_runner {
namespace {

constexpr int64_t kCodes = 0x110000;

int64_t Below(const Json& value, int64_t end, const std::string& where) {
  const int64_t number = IntegerOf(value, where);
  if (number < 0 || number >= end) {
    throw InputError(where + ": " + std::to_string(number) + " is out of range");
  }
  return number;
}

// The range that has a character; null without one.
const CharacterRange* Find(const std::vector<CharacterRange>& ranges, uint32_t code) {
  const auto found = std::ranges::lower_bound(ranges, code, {}, &CharacterRange::last);
  return found != ranges.end() && found->first <= code ? &*found : nullptr;
}

// Reads ranges from a list of their first and last characters; if they `have_text`, each is followed
// by its text.
std::vector<CharacterRange> Ranges(const Json& value, bool have_text, const std::string& where) {
  const Json& list = ListOf(value, where);
  const size_t step = have_text ? 3 : 2;
  std::vector<CharacterRange> ranges;
  int64_t end = 0;
  for (size_t i = 0; i + step <= list.size(); i += step) {
    const int64_t first = Below(list[i], kCodes, where);
    const int64_t last = Below(list[i + 1], kCodes, where);
    if (first < end || last < first) throw InputError(where + ": its characters are not in order");
    end = last + 1;
    ranges.push_back({static_cast<uint32_t>(first), static_cast<uint32_t>(last),
                      have_text ? TextOf(list[i + 2], where) : ""});
  }
  return ranges;
}

}  // namespace

std::string WordPieces::Changed(std::string_view text) const {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Decoded decoded = DecodeAt(text, at);
    const CharacterRange* change = Find(changes, decoded.code);
    out += change != nullptr ? change->text : text.substr(at, decoded.length);
    at += decoded.length;
  }
  return out;
}

void WordPieces::Split(std::string_view text,
                       const std::function<void(std::string_view)>& take) const {
  size_t begin = 0;
  const auto end_word = [&](size_t at) {
    if (at > begin) take(text.substr(begin, at - begin));
  };
  for (size_t at = 0; at < text.size();) {
    const Decoded decoded = DecodeAt(text, at);
    const size_t next = at + decoded.length;
    const bool is_word = Find(alone, decoded.code) != nullptr;
    if (is_word || IsSpace(decoded.code)) {
      end_word(at);
      if (is_word) take(text.substr(at, decoded.length));
      begin = next;
    }
    at = next;
  }
  end_word(text.size());
}

WordPieces ReadWordPieces(const Json& about, int64_t tokens, const std::string& where) {
  WordPieces pieces;
  pieces.unknown = static_cast<int32_t>(Below(Field(about, "unknown", where), tokens, where));
  pieces.longest = Below(Field(about, "longest", where), kCodes, where);
  pieces.prefix = TextOf(Field(about, "prefix", where), where);
  for (const Json& id : ListOf(Field(about, "last", where), where)) {
    pieces.last.push_back(static_cast<int32_t>(Below(id, tokens, where)));
  }
  pieces.changes = Ranges(Field(about, "changes", where), true, where);
  pieces.alone = Ranges(Field(about, "alone", where), false, where);
  return pieces;
}

}  // namespace rvv_runner
