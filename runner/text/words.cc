// SPDX-License-Identifier: Apache-2.0
#include "text/words.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "input/utf8.h"
#include "text/unicode.h"

namespace rvv_runner {
namespace {

constexpr uint32_t kLongS = 0x17F;  // folds to s where case does not count

// A text whose words are found one after another, without a copy of it: a prompt may be megabytes.
// Indices are those of the first byte of a character. The functions return the end of a word that
// starts at index i.
class Cutter {
 public:
  explicit Cutter(std::string_view text) : text_(text) {}

  size_t size() const { return text_.size(); }

  uint32_t At(size_t i) const {
    const auto byte = static_cast<unsigned char>(text_[i]);
    return byte < 0x80 ? byte : DecodeAt(text_, i).code;
  }

  // The next character.
  size_t Next(size_t i) const {
    return static_cast<unsigned char>(text_[i]) < 0x80 ? i + 1 : i + DecodeAt(text_, i).length;
  }

  std::string_view Piece(size_t first, size_t end) const {
    return text_.substr(first, end - first);
  }

  size_t Gpt2(size_t i) const {
    if (const size_t end = Contraction(i, false)) return end;
    const size_t after = BehindBlank(i);
    const uint32_t code = At(after);
    if (IsLetter(code)) return Run(after, IsLetter);
    if (IsNumber(code)) return Run(after, IsNumber);
    if (IsSign(code)) return Run(after, IsSign);
    return Blank(i);
  }

  size_t Llama3(size_t i, size_t most_numbers) const {
    if (const size_t end = Contraction(i, true)) return end;
    const uint32_t code = At(i);
    const bool joins = !IsBreak(code) && !IsLetter(code) && !IsNumber(code);
    const size_t letters = joins ? Next(i) : i;
    if (letters < size() && IsLetter(At(letters))) return Run(letters, IsLetter);
    if (IsNumber(code)) return Run(i, IsNumber, most_numbers);
    const size_t sign = BehindBlank(i);
    if (IsSign(At(sign))) return Run(Run(sign, IsSign), IsBreak);
    return LineEnd(i);
  }

  // [^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*, and contractions and blanks as
  // in Llama 3's.
  size_t Qwen35(size_t i) const {
    if (const size_t end = Contraction(i, true)) return end;
    const uint32_t code = At(i);
    const size_t next = Next(i);
    const bool joins = !IsBreak(code) && !IsLetter(code) && !IsNumber(code);
    if (joins && next < size() && IsLetterOrMark(At(next))) return Run(next, IsLetterOrMark);
    if (IsLetterOrMark(code)) return Run(i, IsLetterOrMark);
    if (IsNumber(code)) return next;
    const size_t sign = BehindBlank(i);
    if (IsSignOnly(At(sign))) return Run(Run(sign, IsSignOnly), IsBreak);
    return LineEnd(i);
  }

  // Matches the last of DeepSeek's three expressions; i if it does not match.
  size_t DeepSeek(size_t i) const {
    const uint32_t code = At(i);
    const size_t next = Next(i);
    if (IsAsciiSign(code) && next < size() && IsAsciiLetter(At(next))) {
      return Run(next, IsAsciiLetter);
    }
    const bool joins = !IsBreak(code) && !IsLetter(code) && !IsPunctuation(code) && !IsSymbol(code);
    if (joins && next < size() && IsLetterOrMark(At(next))) return Run(next, IsLetterOrMark);
    if (IsLetterOrMark(code)) return Run(i, IsLetterOrMark);
    const size_t sign = BehindBlank(i);
    if (IsPrinted(At(sign))) return Run(Run(sign, IsPrinted), IsBreak);
    return IsSpace(code) ? LineEnd(i) : i;
  }

  // [^\r\n\p{L}\p{N}]?U*L+C?|[^\r\n\p{L}\p{N}]?U+L*C?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|
  // \s*[\r\n]+|\s+(?!\S)|\s+ with U: marks and letters except small ones; L: marks and
  // letters except capitals; C: a contraction in any case. Tekken has neither C nor {1,3}.
  size_t GptOss(size_t i, bool contractions, size_t most_numbers) const {
    const uint32_t code = At(i);
    const size_t next = Next(i);
    const bool joins = !IsBreak(code) && !IsLetter(code) && !IsNumber(code) && next < size();
    size_t end = joins ? EndsSmall(next) : 0;
    if (end == 0) end = EndsSmall(i);
    if (end == 0 && joins) end = EndsLarge(next);
    if (end == 0) end = EndsLarge(i);
    if (end != 0) {
      const size_t after = contractions && end < size() ? Contraction(end, true) : 0;
      return after != 0 ? after : end;
    }
    if (IsNumber(code)) return Run(i, IsNumber, most_numbers);
    const size_t sign = BehindBlank(i);
    if (IsSign(At(sign))) return Run(Run(sign, IsSign), IsBreakOrSlash);
    return LineEnd(i);
  }

 private:
  static bool IsBreakOrSlash(uint32_t code) { return IsBreak(code) || code == '/'; }
  static bool IsAsciiLetter(uint32_t code) {
    return (code >= 'A' && code <= 'Z') || (code >= 'a' && code <= 'z');
  }
  static bool IsAsciiSign(uint32_t code) {
    return code > ' ' && code < 0x7F && !IsAsciiLetter(code) && !(code >= '0' && code <= '9');
  }
  static bool IsLetterOrMark(uint32_t code) { return IsLetter(code) || IsMark(code); }
  static bool IsPrinted(uint32_t code) { return IsPunctuation(code) || IsSymbol(code); }
  static bool IsLarge(uint32_t code) { return (IsLetter(code) && !IsSmall(code)) || IsMark(code); }
  static bool IsLow(uint32_t code) { return (IsLetter(code) && !IsCapital(code)) || IsMark(code); }

  // U*L+ at i; 0 where it does not match. A letter without case may stand in either part.
  size_t EndsSmall(size_t i) const {
    size_t k = Run(i, IsLarge);
    while (k >= size() || !IsLow(At(k))) {
      if (k == i) return 0;
      k = Before(k);
    }
    return Run(k, IsLow);
  }

  // U+L* at i; 0 where it does not match.
  size_t EndsLarge(size_t i) const {
    const size_t end = Run(i, IsLarge);
    return end > i ? Run(end, IsLow) : 0;
  }

  static bool IsBreak(uint32_t code) { return code == '\r' || code == '\n'; }

  static bool IsSign(uint32_t code) { return !IsSpace(code) && !IsLetter(code) && !IsNumber(code); }
  static bool IsSignOnly(uint32_t code) { return IsSign(code) && !IsMark(code); }

  // The end of at most `most` characters of a kind.
  size_t Run(size_t i, bool (*kind)(uint32_t), size_t most = SIZE_MAX) const {
    for (; most > 0 && i < size() && kind(At(i)); --most) i = Next(i);
    return i;
  }

  // The character before index i, which is not the first.
  size_t Before(size_t i) const {
    while ((text_[--i] & 0xC0) == 0x80) {
    }
    return i;
  }

  // The character behind a blank at index i, if there is one.
  size_t BehindBlank(size_t i) const { return text_[i] == ' ' && i + 1 < size() ? i + 1 : i; }

  // The end of 's, 't, 're, 've, 'm, 'll or 'd at i; 0 when none of them is there.
  size_t Contraction(size_t i, bool any_case) const {
    static constexpr std::array<std::string_view, 7> kEndings = {"s", "t",  "re", "ve",
                                                                 "m", "ll", "d"};
    if (text_[i] != '\'') return 0;
    for (const std::string_view ending : kEndings) {
      size_t end = i + 1;
      bool same = true;
      for (size_t k = 0; same && k < ending.size(); ++k) {
        uint32_t code = end < size() ? At(end) : 0;
        if (any_case && code >= 'A' && code <= 'Z') code += 'a' - 'A';
        if (any_case && code == kLongS) code = 's';
        same = code == static_cast<unsigned char>(ending[k]);
        if (same) end = Next(end);
      }
      if (same) return end;
    }
    return 0;
  }

  // \s*[\r\n]+ and, where there is no line's end, what follows it in the expression.
  size_t LineEnd(size_t i) const {
    const size_t end = Run(i, IsSpace);
    for (size_t k = end; k > i; k = Before(k)) {
      if (IsBreak(At(Before(k)))) return k;
    }
    return Blank(i);
  }

  // \s+(?!\S)|\s+: the last blank before a word goes to the word.
  size_t Blank(size_t i) const {
    const size_t end = Run(i, IsSpace);
    return end == size() || end == Next(i) ? end : Before(end);
  }

  std::string_view text_;
};

using Take = std::function<void(std::string_view)>;

template <typename End>
void Cut(std::string_view text, const Take& take, const End& end_of) {
  const Cutter cutter(text);
  for (size_t i = 0; i < cutter.size();) {
    const size_t end = end_of(cutter, i);
    take(cutter.Piece(i, end));
    i = end;
  }
}

void CutGpt2(std::string_view text, const Take& take) {
  Cut(text, take, [](const Cutter& cutter, size_t i) { return cutter.Gpt2(i); });
}

// Text between digits is cut separately.
void CutSmolLm(std::string_view text, const Take& take) {
  const auto cut = [&](std::string_view piece) { CutGpt2(piece, take); };
  Cut(text, cut, [](const Cutter& cutter, size_t i) {
    if (IsDigit(cutter.At(i))) return cutter.Next(i);
    while (i < cutter.size() && !IsDigit(cutter.At(i))) i = cutter.Next(i);
    return i;
  });
}

// [\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]
bool IsChineseOrKana(uint32_t code) {
  return (code >= 0x4E00 && code <= 0x9FA5) || (code >= 0x3040 && code <= 0x30FF);
}

// Cuts by the last of DeepSeek's expressions. Text between its matches is a word.
void CutDeepSeekRest(std::string_view text, const Take& take) {
  const Cutter rest(text);
  for (size_t k = 0; k < rest.size();) {
    size_t first = k;
    size_t found = k;
    while (first < rest.size() && (found = rest.DeepSeek(first)) == first) first = rest.Next(first);
    if (first > k) take(rest.Piece(k, first));
    if (found > first) take(rest.Piece(first, found));
    k = std::max(first, found);
  }
}

// Numbers are cut off first, then Chinese and kana; each piece is then cut separately.
void CutDeepSeek(std::string_view text, const Take& take) {
  const auto kind = [](uint32_t code) {
    return IsNumber(code) ? 2 : IsChineseOrKana(code) ? 1 : 0;
  };
  const Cutter cutter(text);
  for (size_t i = 0; i < cutter.size();) {
    const int of = kind(cutter.At(i));
    size_t end = i;
    for (size_t count = 0; end < cutter.size() && kind(cutter.At(end)) == of; ++count) {
      if (of == 2 && count == 3) break;
      end = cutter.Next(end);
    }
    const std::string_view piece = cutter.Piece(i, end);
    i = end;
    of == 2 ? take(piece) : CutDeepSeekRest(piece, take);
  }
}

}  // namespace

bool IsWordRule(uint32_t number) { return number >= 1 && number <= 9; }

void SplitWords(WordRule rule, std::string_view text, const Take& take) {
  switch (rule) {
    case WordRule::kGpt2: return CutGpt2(text, take);
    case WordRule::kSmolLm: return CutSmolLm(text, take);
    case WordRule::kLlama3:
      return Cut(text, take, [](const Cutter& cutter, size_t i) { return cutter.Llama3(i, 3); });
    case WordRule::kQwen2:
      return Cut(text, take, [](const Cutter& cutter, size_t i) { return cutter.Llama3(i, 1); });
    case WordRule::kDeepSeekV3: return CutDeepSeek(text, take);
    case WordRule::kGptOss:
      return Cut(text, take,
                 [](const Cutter& cutter, size_t i) { return cutter.GptOss(i, true, 3); });
    case WordRule::kTekken:
      return Cut(text, take,
                 [](const Cutter& cutter, size_t i) { return cutter.GptOss(i, false, 1); });
    case WordRule::kQwen35:
      return Cut(text, take, [](const Cutter& cutter, size_t i) { return cutter.Qwen35(i); });
    case WordRule::kWhole:
      if (!text.empty()) take(text);
  }
}

}  // namespace rvv_runner
