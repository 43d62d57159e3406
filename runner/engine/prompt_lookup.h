// SPDX-License-Identifier: Apache-2.0
// Speculative decoding without a second model: where the last tokens of a text occurred before, the
// tokens that followed them are guessed to follow again. The model verifies all guesses in one call.
#pragma once

#include <cstdint>
#include <vector>

namespace rvv_runner {

// The tokens, at most `most`, that followed the latest earlier occurrence of the text's last three
// tokens, or else of its last two. Empty if there is none.
std::vector<int32_t> GuessNext(const std::vector<int32_t>& text, int64_t most);

// How many tokens of an answer to guess: more while guesses are right.
class GuessLength {
 public:
  int64_t tokens() const { return tokens_; }
  void Verified(int64_t guessed, int64_t right);

 private:
  int64_t tokens_ = 2;
};

// Whether verifying guesses takes less time than decoding, from measured times.
class LookupGain {
 public:
  // True if the next tokens should be guessed. While guessing has lost time, only after a rest.
  bool Tries();
  // Notes a call that verified guesses and gave so many tokens, and the time of a decode call.
  void Verified(double seconds, int64_t tokens, double decode_seconds);

 private:
  double saved_ = 0;  // decode calls, of late
  int64_t rest_ = 0;  // tokens to decode without guesses
};

}  // namespace rvv_runner
