// SPDX-License-Identifier: Apache-2.0
#include "text/normalize.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <tuple>
#include <vector>

#include "input/utf8.h"
#include "text/nfc_tables.h"

namespace rvv_runner {
namespace {

// Hangul syllables are composed by arithmetic (the Unicode Standard, section 3.12).
constexpr uint32_t kSyllables = 0xAC00;
constexpr uint32_t kLeading = 0x1100;
constexpr uint32_t kVowels = 0x1161;
constexpr uint32_t kTrailing = 0x11A7;  // one before the first: a syllable may have none
constexpr uint32_t kLeadingCount = 19;
constexpr uint32_t kVowelCount = 21;
constexpr uint32_t kTrailingCount = 28;
constexpr uint32_t kSyllableCount = kLeadingCount * kVowelCount * kTrailingCount;

// A code point, its canonical combining class (0 for what starts a sequence), and where it stood.
struct Char {
  uint32_t code;
  uint8_t combining;
  size_t at;
};

void Append(uint32_t code, uint8_t combining, std::vector<Char>* out) {
  out->push_back({code, combining, out->size()});
}

uint8_t ClassOf(uint32_t code) {
  const auto* found = std::ranges::lower_bound(kClasses, code, {}, &ClassRange::last);
  return found != std::end(kClasses) && found->first <= code ? found->combining : 0;
}

void AppendDecomposed(uint32_t code, std::vector<Char>* out) {
  if (code >= kSyllables && code - kSyllables < kSyllableCount) {
    const uint32_t index = code - kSyllables;
    const uint32_t trailing = index % kTrailingCount;
    Append(kLeading + index / (kVowelCount * kTrailingCount), 0, out);
    Append(kVowels + index / kTrailingCount % kVowelCount, 0, out);
    if (trailing != 0) Append(kTrailing + trailing, 0, out);
    return;
  }
  const auto* found = std::ranges::lower_bound(kDecompositions, code, {}, &Decomposition::code);
  if (found == std::end(kDecompositions) || found->code != code) {
    Append(code, ClassOf(code), out);
    return;
  }
  for (const uint32_t part : found->parts) {
    if (part != 0) Append(part, ClassOf(part), out);
  }
}

// Sorts the marks behind each start by their class. The order of equal classes stays.
void Order(std::vector<Char>* text) {
  const auto is_mark = [](const Char& c) { return c.combining != 0; };
  for (auto at = text->begin(); at != text->end();) {
    const auto first = std::find_if(at, text->end(), is_mark);
    at = std::find_if_not(first, text->end(), is_mark);
    std::sort(first, at, [](const Char& a, const Char& b) {
      return std::tie(a.combining, a.at) < std::tie(b.combining, b.at);
    });
  }
}

// The composition of two code points; 0 without one.
uint32_t Composed(uint32_t first, uint32_t second) {
  const uint32_t leading = first - kLeading, vowel = second - kVowels;
  if (leading < kLeadingCount && vowel < kVowelCount) {
    return kSyllables + (leading * kVowelCount + vowel) * kTrailingCount;
  }
  const uint32_t syllable = first - kSyllables, trailing = second - kTrailing;
  const bool open = syllable < kSyllableCount && syllable % kTrailingCount == 0;
  if (open && trailing > 0 && trailing < kTrailingCount) return first + trailing;
  const auto pair_of = [](const Composition& entry) {
    return std::pair(entry.first, entry.second);
  };
  const std::pair pair(first, second);
  const auto* found = std::ranges::lower_bound(kCompositions, pair, {}, pair_of);
  return found != std::end(kCompositions) && pair_of(*found) == pair ? found->composed : 0;
}

// Composes in place. A mark of the same class, or another start, blocks a mark from its start.
void Compose(std::vector<Char>* text) {
  size_t end = 0;
  size_t start = text->size();  // of the sequence; none yet
  for (const Char next : *text) {
    const bool begun = start < end;
    const bool beside = begun && start + 1 == end;
    if (begun && (beside || (*text)[end - 1].combining < next.combining)) {
      if (const uint32_t composed = Composed((*text)[start].code, next.code)) {
        (*text)[start].code = composed;
        continue;
      }
    }
    if (next.combining == 0) start = end;
    (*text)[end++] = next;
  }
  text->resize(end);
}

}  // namespace

std::string Nfc(std::string_view text) {
  // Below U+0300, whose first byte is 0xCC, every text is in this form.
  const auto plain = [](char c) { return static_cast<unsigned char>(c) < 0xCC; };
  if (std::all_of(text.begin(), text.end(), plain)) return std::string(text);
  std::vector<Char> chars;
  for (size_t at = 0; at < text.size();) {
    const Decoded decoded = DecodeAt(text, at);
    AppendDecomposed(decoded.code, &chars);
    at += decoded.length;
  }
  Order(&chars);
  Compose(&chars);
  std::string out;
  for (const Char& c : chars) AppendUtf8(c.code, &out);
  return out;
}

}  // namespace rvv_runner
