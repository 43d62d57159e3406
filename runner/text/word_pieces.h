// SPDX-License-Identifier: Apache-2.0
// WordPiece, with the normalizer and the words of BERT.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "input/json.h"

namespace rvv_runner {

// A range of characters.
struct CharacterRange {
  uint32_t first;
  uint32_t last;
  std::string text = {};  // that replaces each of them
};

// How a text becomes pieces of words.
struct WordPieces {
  int32_t unknown;                      // the token of a word without pieces
  int64_t longest;                      // characters of a word that has pieces
  std::string prefix;                   // of tokens that continue a word
  std::vector<int32_t> last;            // what a text ends with
  std::vector<CharacterRange> changes;  // of the normalizer, ascending
  std::vector<CharacterRange> alone;    // characters that are words, ascending

  // The text after all changes.
  std::string Changed(std::string_view text) const;
  // Cuts a text at its blanks and around characters that are words; calls `take` with each word.
  void Split(std::string_view text, const std::function<void(std::string_view)>& take) const;
};

// Reads the form of a tokenizer file. Throws InputError that starts with `where` if it is something
// else, or names a token that is not one of `tokens`.
WordPieces ReadWordPieces(const Json& about, int64_t tokens, const std::string& where);

}  // namespace rvv_runner
