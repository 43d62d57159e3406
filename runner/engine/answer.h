// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/answer_text.h"
#include "engine/prompt_lookup.h"
#include "engine/request.h"
#include "engine/sampling.h"
#include "grammar/grammar.h"
#include "model/model.h"

namespace rvv_runner {

using Clock = std::chrono::steady_clock;

// The state of a request in the engine: its prompt, its chosen tokens and its reported pieces.
class Answer {
 public:
  using Tokens = std::vector<int32_t>;

  // `longest`: tokens of prompt and answer together.
  Answer(uint64_t id, Request request, int64_t longest, const Tokenizer* tokenizer);

  uint64_t id() const { return id_; }
  const Tokens& prompt() const { return request_.tokens; }
  // The prompt as the cache knows it: tokens of a picture have numbers below 0 of its digest.
  const Tokens& key() const { return key_; }
  size_t owner() const { return request_.owner; }
  int64_t longest() const { return longest_; }

  // Notes its sequence in the cache, which already holds `ready` tokens of the prompt.
  void Start(int64_t sequence, int64_t ready);
  bool started() const { return sequence_.has_value(); }
  int64_t sequence() const { return *sequence_; }
  // Notes that its sequence is lost.
  void Lose() { sequence_.reset(); }

  // Tokens of the prompt that are not in the cache.
  int64_t unread() const { return std::ssize(request_.tokens) - read_; }
  // The next of them, at most `most`.
  std::pair<Tokens::const_iterator, Tokens::const_iterator> Chunk(int64_t most) const;
  void Read(int64_t tokens, double seconds);
  // A picture without states of which a call of at most `most` tokens may read; null if there is none.
  const PreparedPicture* Unseen(int64_t most) const;
  // Notes the states of the picture that Unseen gave, which are a call of the prompt.
  void See(tvm::runtime::Tensor states, double seconds);
  // The states of pictures in the next tokens of the prompt; `row`: the place of the first of these tokens
  // in their call.
  std::vector<Shown> ShownIn(int64_t tokens, int64_t row) const;
  // Notes that the next tokens of the prompt were found in files; 0: no more will be.
  void Found(int64_t tokens);
  bool may_be_in_files() const { return in_files_; }
  bool scores_prompt() const { return request_.scores_prompt; }
  bool embeds() const { return request_.embeds; }
  bool only_reads() const { return request_.only_reads || request_.embeds; }
  // True if every token of the prompt must be computed.
  bool starts_empty() const { return scores_prompt() || embeds(); }
  // Notes the logits after each of the next tokens of the prompt, before Read.
  void Score(const std::vector<std::vector<float>>& rows);
  // Notes the sum of the states of the next tokens of the prompt. `unit`: the vector that they give
  // is scaled to length 1.
  void AddStates(const std::vector<double>& sum, bool unit);
  void Decoded(double seconds) { ended_.decode_seconds.push_back(seconds); }

  // Chooses a token and reports it. Returns how the answer ends, if it does.
  std::optional<Finish> Next(const std::vector<float>& logits);
  int32_t last() const { return said_.back(); }

  // The tokens that prompt lookup guesses to follow, at most `most` and as many as may still come.
  Tokens Guess(int64_t most) const;
  void Verified(int64_t guessed, int64_t right) { guesses_.Verified(guessed, right); }

  // Reports the rest of the text, and the end. Does not throw.
  void End(Finish finish, const std::string& error);

 private:
  int32_t Choose(const std::vector<float>& logits);
  void Tell(const std::string& text);
  // A picture of the prompt; states only from the time when it is next to be read until it was read.
  struct Seen {
    int64_t first, end;  // of its tokens
    std::shared_ptr<const PreparedPicture> picture;
    std::optional<tvm::runtime::Tensor> states;
  };

  uint64_t id_;
  Request request_;
  Tokens key_;
  std::vector<Seen> pictures_;  // that are not read
  int64_t longest_;
  Sampler sampler_;
  std::unique_ptr<GrammarState> grammar_;  // null: any text
  StoppedText text_;
  std::optional<int64_t> sequence_;
  int64_t read_ = 0;
  bool in_files_ = true;
  std::vector<double> states_;  // sum
  bool unit_ = true;
  Tokens said_;  // the prompt and the answer
  GuessLength guesses_;
  Piece piece_;
  Ended ended_;
  Clock::time_point submitted_ = Clock::now();
};

}  // namespace rvv_runner
