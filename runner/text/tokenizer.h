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
  // Number of bytes without a token in the vocabulary. They are left out, as in the tokenizer that
  // the model was trained with.
  size_t dropped = 0;
};

// A tokenizer: text to ids, ids to bytes.
class Tokenizer {
 public:
  explicit Tokenizer(TokenizerFile file);
  // Not copyable: it holds views of its own tokens.
  Tokenizer(Tokenizer&&) = default;

  // Encodes a UTF-8 text of less than 4 GiB. Markers in it become their ids. Throws
  // ContextError for a text of more than `most` tokens: with their number if the text is short,
  // and without the time and memory that they would take if it is long.
  Encoded Encode(std::string_view text, size_t most = SIZE_MAX) const;

  // The bytes of a token; empty for special tokens and for ids beyond the vocabulary.
  std::string_view Bytes(int32_t id) const;

  // The same with the names of special tokens.
  std::string_view Visible(int32_t id) const;

  // True if the token is one byte of a character that has no token.
  bool IsByte(int32_t id) const;
  // True if the blank at the beginning of an answer is dropped.
  bool drops_blank() const { return file_.drops_blank; }
  // True if tokens are characters, and bytes only for characters without a token.
  bool by_character() const { return file_.by_character; }

  size_t size() const { return file_.tokens.size(); }
  const std::vector<int32_t>& stop() const { return file_.stop; }
  const std::vector<int32_t>& first() const { return file_.first; }
  // What a text without the chat ends with.
  std::span<const int32_t> last() const {
    return file_.pieces ? std::span<const int32_t>(file_.pieces->last) : std::span<const int32_t>();
  }
  const ChatTemplate& chat() const { return file_.chat; }
  const std::optional<ToolFormat>& calls() const { return file_.calls; }

 private:
  struct Marker {
    uint32_t token;
    std::string text;
  };
  // Markers by the first byte of their text, the longest first.
  using Markers = std::vector<std::vector<Marker>>;

  Markers MarkersOf(uint8_t kind) const;
  template <typename Rest>
  void SplitMarkers(const Markers& markers, std::string_view text, Encoded* out,
                    const Rest& rest) const;
  void EncodePart(std::string_view part, bool first, size_t most, Encoded* out) const;
  void EncodeWord(std::string_view word, size_t most, Encoded* out) const;
  void EncodePieces(std::string_view word, Encoded* out) const;
  template <typename Take>
  void Beginnings(std::string_view word, const Take& take) const;
  const Merge* FindMerge(uint32_t left, uint32_t right) const;

  TokenizerFile file_;
  Markers markers_;
  Markers late_markers_;
  std::unordered_map<std::string_view, uint32_t> words_;  // whole words, or characters
  std::vector<std::string> shown_;  // what tokens are in an answer; empty: as they are
  size_t longest_ = 1;              // bytes of a token
};

// Builds the text of an answer token by token.
class AnswerText {
 public:
  // `continues`: text is before the answer, so that a blank at its beginning is a part of it.
  explicit AnswerText(const Tokenizer& tokenizer, bool continues = false)
      : tokenizer_(tokenizer), begun_(continues) {}
  // The characters that this token completes.
  std::string Next(int32_t id);
  std::string Finish();
  // True if the last character is incomplete.
  bool pending() const { return stream_.pending() || !bytes_.empty(); }

 private:
  // Byte tokens in a row. They are shown together when another token comes; if they are not UTF-8,
  // each becomes U+FFFD, as in the tokenizers library.
  std::string TakeBytes();
  // False until the answer has its first characters, which may lose a blank.
  std::string Begun(std::string text);

  const Tokenizer& tokenizer_;
  Utf8Stream stream_;
  std::string bytes_;
  bool begun_;
};

// The text of tokens, with the names of special ones.
std::string TextOf(const Tokenizer& tokenizer, std::span<const int32_t> ids);

// The ids of a conversation in the model's chat. `what` names it in messages. Throws InputError as
// ChatTemplate::Text does, when a message is not UTF-8, and for more than `most` tokens.
Encoded EncodeChat(const Tokenizer& tokenizer, const ChatInput& conversation,
                   const std::string& what, size_t most = SIZE_MAX);
Encoded EncodeChat(const Tokenizer& tokenizer, std::span<const Message> messages,
                   const std::string& what, size_t most = SIZE_MAX);

// The ids of what the user typed, in the model's chat or as it is (`raw`). `what` names the
// option in messages. Throws InputError when it is not UTF-8, blank, gives no token at all, or has
// more than `most` tokens.
Encoded EncodePrompt(const Tokenizer& tokenizer, const std::string& prompt, bool raw,
                     const std::string& what, size_t most = SIZE_MAX);

}  // namespace rvv_runner
