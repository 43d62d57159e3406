// SPDX-License-Identifier: Apache-2.0
#include "engine/prompt_lookup.h"

#include <algorithm>

namespace rvv_runner {
namespace {

constexpr int64_t kLongestMatch = 3;
constexpr int64_t kShortestMatch = 2;  // one token alone occurs too often by chance
constexpr int64_t kMostGuessed = 15;   // with the token before them a block of rows
constexpr double kFade = 0.9;          // of what earlier calls saved
constexpr double kMostLost = 1.5;      // decode calls, before a rest
constexpr int64_t kRest = 96;          // tokens

}  // namespace

std::vector<int32_t> GuessNext(const std::vector<int32_t>& text, int64_t most) {
  for (int64_t length = kLongestMatch; length >= kShortestMatch && most > 0; --length) {
    if (std::ssize(text) <= length) continue;
    const auto pattern = text.end() - length;
    // The latest occurrence that a token follows.
    const auto found = std::find_end(text.begin(), text.end() - 1, pattern, text.end());
    if (found == text.end() - 1) continue;
    const auto first = found + length;
    return {first, first + std::min<int64_t>(most, text.end() - first)};
  }
  return {};
}

void GuessLength::Verified(int64_t guessed, int64_t right) {
  tokens_ = right == guessed ? std::min(2 * tokens_, kMostGuessed) : std::max<int64_t>(1, right);
}

bool LookupGain::Tries() {
  if (rest_ == 0) return true;
  --rest_;
  return false;
}

void LookupGain::Verified(double seconds, int64_t tokens, double decode_seconds) {
  if (decode_seconds <= 0) return;
  saved_ = kFade * saved_ + static_cast<double>(tokens) - seconds / decode_seconds;
  if (saved_ > -kMostLost) return;
  saved_ = 0;
  rest_ = kRest;
}

}  // namespace rvv_runner
