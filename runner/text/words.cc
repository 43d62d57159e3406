// SPDX-License-Identifier: Apache-2.0
#include "text/words.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

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

  // The functions from here return i if they do not match.

  // The last of DeepSeek V3's three expressions.
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

  // At most `most` characters of a kind.
  template <bool (*kKind)(uint32_t), size_t kMost = SIZE_MAX>
  size_t Of(size_t i) const {
    return Run(i, kKind, kMost);
  }

  // Characters of a kind, with a space before them.
  template <bool (*kKind)(uint32_t)>
  size_t WithSpace(size_t i) const {
    const size_t next = IsSpace(At(i)) ? Next(i) : i;
    return next < size() && kKind(At(next)) ? Run(next, kKind) : Run(i, kKind);
  }

  // \s+$; only the first of some spaces is tried, as there may be many.
  size_t SpacesAtEnd(size_t i) const {
    const bool first = i == 0 || !IsSpace(At(Before(i)));
    return first && Run(i, IsSpace) == size() ? size() : i;
  }

  static bool IsBreak(uint32_t code) { return code == '\r' || code == '\n'; }
  // [!-/:-~！-／：-～‘-‟　-。]
  static bool IsDeepSeekSign(uint32_t code) {
    return (code >= '!' && code <= '/') || (code >= ':' && code <= '~') ||
           (code >= 0xFF01 && code <= 0xFF0F) || (code >= 0xFF1A && code <= 0xFF5E) ||
           (code >= 0x2018 && code <= 0x201F) || (code >= 0x3000 && code <= 0x3002);
  }
  // [\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]
  static bool IsEastern(uint32_t code) {
    return (code >= 0x800 && code <= 0x9FA5) || (code >= 0xAC00 && code <= 0xD7FF);
  }
  // [\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]
  static bool IsChineseOrKana(uint32_t code) {
    return (code >= 0x4E00 && code <= 0x9FA5) || (code >= 0x3040 && code <= 0x30FF);
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

// An expression: the end of its match at index i; i if it does not match.
using Match = size_t (Cutter::*)(size_t) const;

// Cuts by expressions in turn. Each cuts all pieces of the one before: its matches, and the text
// between them.
void CutInTurn(std::string_view text, std::span<const Match> expressions, const Take& take) {
  if (expressions.empty()) return take(text);
  const Cutter cutter(text);
  const auto cut = [&](size_t first, size_t end) {
    if (first < end) CutInTurn(cutter.Piece(first, end), expressions.subspan(1), take);
  };
  size_t done = 0;
  for (size_t i = 0; i < cutter.size();) {
    const size_t end = (cutter.*expressions.front())(i);
    if (end == i) {
      i = cutter.Next(i);
      continue;
    }
    cut(done, i);
    cut(i, end);
    done = i = end;
  }
  cut(done, cutter.size());
}

constexpr std::array<Match, 2> kSmolLm = {&Cutter::Of<IsDigit, 1>, &Cutter::Gpt2};
constexpr std::array<Match, 3> kDeepSeekV3 = {
    &Cutter::Of<IsNumber, 3>, &Cutter::Of<Cutter::IsChineseOrKana>, &Cutter::DeepSeek};
constexpr std::array<Match, 6> kDeepSeekLlm = {
    &Cutter::Of<Cutter::IsBreak, 1>,
    &Cutter::WithSpace<IsCased>,
    &Cutter::WithSpace<Cutter::IsDeepSeekSign>,
    &Cutter::SpacesAtEnd,
    &Cutter::Of<Cutter::IsEastern>,
    &Cutter::Of<IsDigit, 1>,
};
constexpr std::array<Match, 5> kDeepSeekCoder = {
    &Cutter::Of<Cutter::IsBreak, 1>,   &Cutter::WithSpace<IsLetter>,
    &Cutter::WithSpace<IsPunctuation>, &Cutter::Of<Cutter::IsEastern>,
    &Cutter::Of<IsDigit, 1>,
};

}  // namespace

bool IsWordRule(uint32_t number) { return number >= 1 && number <= 11; }

void SplitWords(WordRule rule, std::string_view text, const Take& take) {
  switch (rule) {
    case WordRule::kGpt2:
      return Cut(text, take, [](const Cutter& cutter, size_t i) { return cutter.Gpt2(i); });
    case WordRule::kSmolLm: return CutInTurn(text, kSmolLm, take);
    case WordRule::kLlama3:
      return Cut(text, take, [](const Cutter& cutter, size_t i) { return cutter.Llama3(i, 3); });
    case WordRule::kQwen2:
      return Cut(text, take, [](const Cutter& cutter, size_t i) { return cutter.Llama3(i, 1); });
    case WordRule::kDeepSeekV3: return CutInTurn(text, kDeepSeekV3, take);
    case WordRule::kDeepSeekLlm: return CutInTurn(text, kDeepSeekLlm, take);
    case WordRule::kDeepSeekCoder: return CutInTurn(text, kDeepSeekCoder, take);
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
