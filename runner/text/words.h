// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace rvv_runner {

// How a model cuts text into the words that it then encodes one by one. The numbers are those
// of the tokenizer file.
enum class WordRule : uint32_t {
  kGpt2 = 1,    // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kSmolLm = 2,  // each digit alone, then as GPT-2 does
  kLlama3 = 3,  // (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
                // ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
  kQwen2 = 4,   // as Llama 3, each number alone
  // Three patterns in turn: \p{N}{1,3}; Chinese characters and kana; then
  // [!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|
  // ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+. Text between the matches is kept, too.
  kDeepSeekV3 = 5,
  kGptOss = 6,  // words end where capitals begin, marks belong to letters; see words.cc
  kWhole = 7,   // the text is one word
  kQwen35 = 8,  // as Qwen 2, marks belong to letters
  kTekken = 9,  // as gpt-oss, without contractions, each number alone
  // Expressions in turn: [\r\n]; \s?[letters with case]+; \s?[signs]+; \s+$; Chinese and other
  // Eastern characters; each digit alone
  kDeepSeekLlm = 10,
  kDeepSeekCoder = 11,  // [\r\n]; \s?\p{L}+; \s?\p{P}+; Eastern characters; each digit alone
};

bool IsWordRule(uint32_t number);

// Cuts a UTF-8 text into words, and calls `take` with each. Joined, the words are the text.
void SplitWords(WordRule rule, std::string_view text,
                const std::function<void(std::string_view)>& take);

}  // namespace rvv_runner
