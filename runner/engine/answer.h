// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/answer_text.h"
#include "engine/request.h"
#include "engine/sampling.h"

namespace rvv_runner {

using Clock = std::chrono::steady_clock;

// A request on its way through the engine: its tokens, what was chosen, what was told.
class Answer {
 public:
  using Tokens = std::vector<int32_t>;

  // `longest`: tokens of prompt and answer together.
  Answer(uint64_t id, Request request, int64_t longest, const Tokenizer* tokenizer);

  uint64_t id() const { return id_; }
  const Tokens& prompt() const { return request_.tokens; }
  int64_t longest() const { return longest_; }

  // It has a place in the cache, with so many tokens of the prompt.
  void Start(int64_t sequence, int64_t ready);
  bool started() const { return sequence_.has_value(); }
  int64_t sequence() const { return *sequence_; }
  // Its place is lost.
  void Lose() { sequence_.reset(); }

  // Tokens of the prompt that are not in the cache.
  int64_t unread() const { return std::ssize(request_.tokens) - read_; }
  // The next of them, at most so many.
  std::pair<Tokens::const_iterator, Tokens::const_iterator> Chunk(int64_t most) const;
  void Read(int64_t tokens, double seconds);
  void Decoded(double seconds) { ended_.decode_seconds.push_back(seconds); }

  // Chooses a token, and tells it. How the answer ends, if it does.
  std::optional<Finish> Next(const std::vector<float>& logits);
  int32_t last() const { return last_; }

  // Tells what is left, and the end. Throws nothing.
  void End(Finish finish, const std::string& error);

 private:
  void Tell(const std::string& text);

  uint64_t id_;
  Request request_;
  int64_t longest_;
  Sampler sampler_;
  StoppedText text_;
  std::optional<int64_t> sequence_;
  int64_t read_ = 0;
  int32_t last_ = 0;
  Piece piece_;
  Ended ended_;
  Clock::time_point submitted_ = Clock::now();
};

}  // namespace rvv_runner
