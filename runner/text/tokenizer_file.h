// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat.h"
#include "text/tool_format.h"
#include "text/word_pieces.h"
#include "text/words.h"

namespace rvv_runner {

constexpr uint32_t kNoToken = 0xFFFFFFFF;
constexpr std::string_view kBlank = "\u2581";

// Two neighbours that become one token. Smaller ranks are merged first.
struct Merge {
  uint32_t left;
  uint32_t right;
  uint32_t merged;
  uint32_t rank;
};

// The properties of a token.
enum TokenKind : uint8_t {
  kSpecial = 1,      // controls the model; not a part of an answer's text
  kMarker = 2,       // found in a text before it is cut into words
  kLateMarker = 4,   // a marker that is looked for after the others
  kWord = 8,         // merges of a word may give it
  kTakesLeft = 16,   // the marker takes the blanks before it
  kTakesRight = 32,  // and those behind it
  kSpelled = 64,     // the marker's text is its bytes in the alphabet of byte-level tokenizers
};

// Rules for putting a blank before a text.
enum class Prefix : uint8_t {
  kNone,
  kAlways,       // before each part between markers
  kUnlessThere,  // before each part that does not begin with a blank
  kAtBeginning,  // the same, but only before a part at the beginning of the text
};

// The content of `tokenizer.bin`: a BPE tokenizer, byte-level or with bytes for characters that
// have no token; or WordPiece. The layout, all numbers little-endian uint32:
//   "RVVTOKEN", version (4), CRC-32 of all that follows,
//   word rule, flags, counts of tokens, merges, bytes of all tokens, stop ids, first ids, bytes
//   of each of four texts,
//   for each token the end of its bytes, for each byte its token, merges (left, right, merged,
//   rank) in ascending order of their pairs, stop ids, first ids,
//   one byte a token: its kind; the tokens' bytes; the texts: the chat's template, its
//   variables, the form of its calls of tools, and WordPieces, the last three as JSON.
struct TokenizerFile {
  WordRule rule = WordRule::kGpt2;
  bool whole_words = false;  // a word that is a token is not built from merges
  bool nfc = false;          // text between markers is brought to Unicode's form NFC
  bool by_character =
      false;                 // as SentencePiece does: kBlank in tokens is a blank, words are merged
                             // from characters, <0xXX> is a byte of a character without a token
  bool drops_blank = false;  // a blank at the beginning of an answer is left out
  Prefix prefix_blank = Prefix::kNone;
  std::vector<std::string> tokens;
  std::vector<uint8_t> kinds;
  std::array<uint32_t, 256> bytes{};  // kNoToken where the vocabulary has none
  std::vector<Merge> merges;
  std::vector<int32_t> stop;
  std::vector<int32_t> first;  // what a text without the chat starts with
  ChatTemplate chat;
  std::optional<ToolFormat> calls;   // nullopt: the model calls no tools
  std::optional<WordPieces> pieces;  // nullopt: BPE
};

// Reads and checks a file. Throws InputError that starts with `where`. It takes at most a small
// multiple of the data as memory.
TokenizerFile ParseTokenizerFile(std::string_view data, const std::string& where);

// The byte of a token `<0xXX>`; nullopt for every other token.
std::optional<unsigned char> ByteOf(std::string_view token);

// CRC-32 as zlib has it.
uint32_t Crc32(std::string_view data);

}  // namespace rvv_runner
