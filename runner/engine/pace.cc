// SPDX-License-Identifier: Apache-2.0
#include "engine/pace.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace rvv_runner {

void Pace::Read(int64_t rows, double seconds) {
  // The first call of a program also fetches the weights.
  if (!std::exchange(warm_, true)) return;
  each_ = seconds / static_cast<double>(rows);
  // A longer call is never faster than one of one row.
  single_ = rows == 1 || single_ == 0 ? seconds : std::min(seconds, single_);
}

void Pace::ReadBeside(int64_t rows, double seconds) {
  Read(rows, seconds);
  ++together_;
}

void Pace::Decoded(int64_t answers, double seconds) {
  constexpr double kGrowth = 1.05;  // at most, so that one slow call counts little
  const bool grows = answers == answers_ && decode_ > 0;
  decode_ = grows ? std::min(seconds, kGrowth * decode_) : seconds;
  answers_ = answers;
  together_ = 0;
}

int64_t Pace::Rows(bool streams) const {
  if (!adaptive_) return most_;
  constexpr double kDecodeSteps =
      7;  // with a decode call that follows, and what varies, less than ten
  constexpr double kSeconds = 1.0;  // until the engine heeds a request to stop
  constexpr double kTile = 16;      // rows of a kernel
  const bool beside = streams && decode_ > 0;
  const double most = beside ? kDecodeSteps * decode_ : std::max(kSeconds, 2 * single_);
  const double each = each_ > 0 ? each_ : beside ? decode_ : most;
  // It converges: a call takes a time of its own and a time for each row, and the time of one row
  // is at most a half of `most`.
  const double rows = std::min(std::round(most / each), static_cast<double>(most_));
  const double whole = rows < 2 * kTile ? rows : std::floor(rows / kTile) * kTile;
  return std::min(std::max<int64_t>(static_cast<int64_t>(whole), 1), most_);
}

bool Pace::Knows(int64_t answers) const {
  constexpr int kMeasured = 8;  // a decode call after as many
  return !adaptive_ || (answers_ == answers && together_ < kMeasured);
}

}  // namespace rvv_runner
