// SPDX-License-Identifier: Apache-2.0
#include "text/words.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "input/utf8.h"
#include "text/unicode.h"

namespace rvv_runner {
namespace {

constexpr uint32_t kLongS = 0x17F;  // folds to s where case does not count

// A text as code points. Its functions return the end of a word that starts at index i.
class Cutter {
 public:
  explicit Cutter(std::string_view text) : text_(text) {
    for (size_t at = 0; at < text.size();) {
      const Decoded decoded = DecodeAt(text, at);
      codes_.push_back(decoded.code);
      starts_.push_back(at);
      at += decoded.length;
    }
    starts_.push_back(text.size());
  }

  size_t size() const { return codes_.size(); }
  uint32_t At(size_t i) const { return codes_[i]; }

  std::string_view Piece(size_t first, size_t end) const {
    return text_.substr(starts_[first], starts_[end] - starts_[first]);
  }

  size_t Gpt2(size_t i) const {
    if (const size_t end = Contraction(i, false)) return end;
    const size_t after = codes_[i] == ' ' && i + 1 < size() ? i + 1 : i;
    if (IsLetter(codes_[after])) return Run(after, IsLetter);
    if (IsNumber(codes_[after])) return Run(after, IsNumber);
    if (IsSign(codes_[after])) return Run(after, IsSign);
    return Blank(i);
  }

  size_t Llama3(size_t i, size_t most_numbers) const {
    if (const size_t end = Contraction(i, true)) return end;
    const uint32_t code = codes_[i];
    const bool joins = !IsBreak(code) && !IsLetter(code) && !IsNumber(code);
    const size_t letters = joins ? i + 1 : i;
    if (letters < size() && IsLetter(codes_[letters])) return Run(letters, IsLetter);
    if (IsNumber(code)) return std::min(Run(i, IsNumber), i + most_numbers);
    const size_t sign = code == ' ' && i + 1 < size() ? i + 1 : i;
    if (IsSign(codes_[sign])) return Run(Run(sign, IsSign), IsBreak);
    return LineEnd(i);
  }

  // Matches the last of DeepSeek's three expressions; i if it does not match.
  size_t DeepSeek(size_t i) const {
    const uint32_t code = codes_[i];
    if (IsAsciiSign(code) && i + 1 < size() && IsAsciiLetter(codes_[i + 1])) {
      return Run(i + 1, IsAsciiLetter);
    }
    const bool joins = !IsBreak(code) && !IsLetter(code) && !IsPunctuation(code) && !IsSymbol(code);
    if (joins && i + 1 < size() && IsLetterOrMark(codes_[i + 1])) {
      return Run(i + 1, IsLetterOrMark);
    }
    if (IsLetterOrMark(code)) return Run(i, IsLetterOrMark);
    const size_t sign = code == ' ' && i + 1 < size() ? i + 1 : i;
    if (IsPrinted(codes_[sign])) return Run(Run(sign, IsPrinted), IsBreak);
    return IsSpace(code) ? LineEnd(i) : i;
  }

  // [^\r\n\p{L}\p{N}]?U*L+C?|[^\r\n\p{L}\p{N}]?U+L*C?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|
  // \s*[\r\n]+|\s+(?!\S)|\s+ with U: marks and letters except small ones; L: marks and
  // letters except capitals; C: a contraction in any case.
  size_t GptOss(size_t i) const {
    const uint32_t code = codes_[i];
    const bool joins = !IsBreak(code) && !IsLetter(code) && !IsNumber(code) && i + 1 < size();
    size_t end = joins ? EndsSmall(i + 1) : 0;
    if (end == 0) end = EndsSmall(i);
    if (end == 0 && joins) end = EndsLarge(i + 1);
    if (end == 0) end = EndsLarge(i);
    if (end != 0) {
      const size_t after = end < size() ? Contraction(end, true) : 0;
      return after != 0 ? after : end;
    }
    if (IsNumber(code)) return std::min(Run(i, IsNumber), i + 3);
    const size_t sign = code == ' ' && i + 1 < size() ? i + 1 : i;
    if (IsSign(codes_[sign])) return Run(Run(sign, IsSign), IsBreakOrSlash);
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
    for (size_t k = Run(i, IsLarge) + 1; k-- > i;) {
      if (k < size() && IsLow(codes_[k])) return Run(k, IsLow);
    }
    return 0;
  }

  // U+L* at i; 0 where it does not match.
  size_t EndsLarge(size_t i) const {
    const size_t end = Run(i, IsLarge);
    return end > i ? Run(end, IsLow) : 0;
  }

  static bool IsBreak(uint32_t code) { return code == '\r' || code == '\n'; }

  static bool IsSign(uint32_t code) { return !IsSpace(code) && !IsLetter(code) && !IsNumber(code); }

  size_t Run(size_t i, bool (*kind)(uint32_t)) const {
    while (i < size() && kind(codes_[i])) ++i;
    return i;
  }

  // The end of 's, 't, 're, 've, 'm, 'll or 'd at i; 0 when none of them is there.
  size_t Contraction(size_t i, bool any_case) const {
    static constexpr std::array<std::string_view, 7> kEndings = {"s", "t",  "re", "ve",
                                                                 "m", "ll", "d"};
    if (codes_[i] != '\'') return 0;
    for (const std::string_view ending : kEndings) {
      const size_t end = i + 1 + ending.size();
      bool same = end <= size();
      for (size_t k = 0; same && k < ending.size(); ++k) {
        uint32_t code = codes_[i + 1 + k];
        if (any_case && code >= 'A' && code <= 'Z') code += 'a' - 'A';
        if (any_case && code == kLongS) code = 's';
        same = code == static_cast<unsigned char>(ending[k]);
      }
      if (same) return end;
    }
    return 0;
  }

  // \s*[\r\n]+ and, where there is no line's end, what follows it in the expression.
  size_t LineEnd(size_t i) const {
    const size_t end = Run(i, IsSpace);
    for (size_t k = end; k > i; --k) {
      if (IsBreak(codes_[k - 1])) return k;
    }
    return Blank(i);
  }

  // \s+(?!\S)|\s+: the last blank before a word goes to the word.
  size_t Blank(size_t i) const {
    const size_t end = Run(i, IsSpace);
    return end == size() || end == i + 1 ? end : end - 1;
  }

  std::string_view text_;
  std::vector<uint32_t> codes_;
  std::vector<size_t> starts_;
};

template <typename End>
void Cut(std::string_view text, std::vector<std::string_view>* words, const End& end_of) {
  const Cutter cutter(text);
  for (size_t i = 0; i < cutter.size();) {
    const size_t end = end_of(cutter, i);
    words->push_back(cutter.Piece(i, end));
    i = end;
  }
}

void CutGpt2(std::string_view text, std::vector<std::string_view>* words) {
  Cut(text, words, [](const Cutter& cutter, size_t i) { return cutter.Gpt2(i); });
}

// Text between digits is cut separately.
void CutSmolLm(std::string_view text, std::vector<std::string_view>* words) {
  std::vector<std::string_view> pieces;
  Cut(text, &pieces, [](const Cutter& cutter, size_t i) {
    if (IsDigit(cutter.At(i))) return i + 1;
    while (i < cutter.size() && !IsDigit(cutter.At(i))) ++i;
    return i;
  });
  for (const std::string_view piece : pieces) CutGpt2(piece, words);
}

// [\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]
bool IsChineseOrKana(uint32_t code) {
  return (code >= 0x4E00 && code <= 0x9FA5) || (code >= 0x3040 && code <= 0x30FF);
}

// Numbers are cut off first, then Chinese and kana; each piece is then cut separately. Text between
// matches of the last expression is a word.
void CutDeepSeek(std::string_view text, std::vector<std::string_view>* words) {
  const auto kind = [](uint32_t code) {
    return IsNumber(code) ? 2 : IsChineseOrKana(code) ? 1 : 0;
  };
  const Cutter cutter(text);
  for (size_t i = 0; i < cutter.size();) {
    const int of = kind(cutter.At(i));
    size_t end = i;
    while (end < cutter.size() && kind(cutter.At(end)) == of && !(of == 2 && end == i + 3)) ++end;
    const std::string_view piece = cutter.Piece(i, end);
    i = end;
    if (of == 2) {
      words->push_back(piece);
      continue;
    }
    const Cutter rest(piece);
    for (size_t k = 0; k < rest.size();) {
      size_t first = k;
      size_t found = k;
      while (first < rest.size() && (found = rest.DeepSeek(first)) == first) ++first;
      if (first > k) words->push_back(rest.Piece(k, first));
      if (found > first) words->push_back(rest.Piece(first, found));
      k = std::max(first, found);
    }
  }
}

}  // namespace

bool IsWordRule(uint32_t number) { return number >= 1 && number <= 7; }

std::vector<std::string_view> SplitWords(WordRule rule, std::string_view text) {
  std::vector<std::string_view> words;
  switch (rule) {
    case WordRule::kGpt2: CutGpt2(text, &words); break;
    case WordRule::kSmolLm: CutSmolLm(text, &words); break;
    case WordRule::kLlama3:
      Cut(text, &words, [](const Cutter& cutter, size_t i) { return cutter.Llama3(i, 3); });
      break;
    case WordRule::kQwen2:
      Cut(text, &words, [](const Cutter& cutter, size_t i) { return cutter.Llama3(i, 1); });
      break;
    case WordRule::kDeepSeekV3: CutDeepSeek(text, &words); break;
    case WordRule::kGptOss:
      Cut(text, &words, [](const Cutter& cutter, size_t i) { return cutter.GptOss(i); });
      break;
    case WordRule::kWhole:
      if (!text.empty()) words.push_back(text);
      break;
  }
  return words;
}

}  // namespace rvv_runner
