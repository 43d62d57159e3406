// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "input/utf8.h"
#include "text/chat.h"
#include "text/tokenizer_file.h"

namespace rvv_runner {

// A text as token ids.
struct Encoded {
  std::vector<int32_t> ids;
  // Bytes that the vocabulary has no token for: they are left out, as the tokenizer that the
  // model was trained with does.
  size_t dropped = 0;
};

// A BPE tokenizer: text to ids, ids to bytes.
class Tokenizer {
 public:
  explicit Tokenizer(TokenizerFile file);
  // Not copied: it keeps views of its own tokens.
  Tokenizer(Tokenizer&&) = default;

  // Ids of a text, which must be UTF-8; markers in it become their ids.
  Encoded Encode(std::string_view text) const;

  // The bytes of a token; none for special tokens and for ids beyond the vocabulary.
  std::string_view Bytes(int32_t id) const;

  // The token stands for one byte of a character that is no token.
  bool IsByte(int32_t id) const;
  // An answer's text goes without the blank at its beginning.
  bool drops_blank() const { return file_.drops_blank; }
  // Characters are tokens, and bytes alone where one is missing.
  bool by_character() const { return file_.by_character; }

  size_t size() const { return file_.tokens.size(); }
  const std::vector<int32_t>& stop() const { return file_.stop; }
  const std::vector<int32_t>& first() const { return file_.first; }
  const ChatFrame& chat() const { return file_.chat; }

 private:
  // Markers by their first byte, the longest first.
  using Markers = std::vector<std::vector<uint32_t>>;

  Markers MarkersOf(uint8_t kind) const;
  template <typename Rest>
  void SplitMarkers(const Markers& markers, std::string_view text, Encoded* out,
                    const Rest& rest) const;
  void EncodePart(std::string_view part, bool first, Encoded* out) const;
  void EncodeWord(std::string_view word, Encoded* out) const;
  std::vector<uint32_t> Beginnings(std::string_view word) const;
  const Merge* FindMerge(uint32_t left, uint32_t right) const;

  TokenizerFile file_;
  Markers markers_;
  Markers late_markers_;
  std::unordered_map<std::string_view, uint32_t> words_;  // whole words, or characters
  std::vector<std::string> shown_;  // by_character: what tokens are in an answer
};

// Text of an answer as it comes, token by token.
class AnswerText {
 public:
  explicit AnswerText(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  // The characters that this token completes.
  std::string Next(int32_t id);
  std::string Finish();
  // The last character is not whole yet.
  bool pending() const { return stream_.pending() || !bytes_.empty(); }

 private:
  // Bytes that stand for characters: they are shown together when another token comes, each as
  // U+FFFD where they are not UTF-8, as the tokenizers library does.
  std::string TakeBytes();
  // The first characters of the answer may lose a blank.
  std::string Begun(std::string text);

  const Tokenizer& tokenizer_;
  Utf8Stream stream_;
  std::string bytes_;
  bool begun_ = false;
};

// The ids of a conversation in the model's chat. `what` names it in messages. Throws InputError as
// ChatText does, and when a message is not UTF-8.
Encoded EncodeChat(const Tokenizer& tokenizer, std::span<const Message> messages,
                   const std::string& what);

// The ids of what the user typed, in the model's chat or as it is (`raw`). `what` names the
// option in messages. Throws InputError when it is not UTF-8, blank, or gives no token at all.
Encoded EncodePrompt(const Tokenizer& tokenizer, const std::string& prompt, bool raw,
                     const std::string& what);

}  // namespace rvv_runner
