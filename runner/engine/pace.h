// SPDX-License-Identifier: Apache-2.0
// The pace of the model's calls, and from it the length of the next part of a prompt.
#pragma once

#include <cstdint>

namespace rvv_runner {

// A row is a token that a call reads: of a prompt, or the last one of an answer.
class Pace {
 public:
  // `most`: rows of a call. `adaptive`: see EngineLimits; otherwise each part has `most`.
  Pace(int64_t most, bool adaptive) : most_(most), adaptive_(adaptive) {}

  // Note the time of a call: of a part of a prompt (or of guesses) alone; of a part and the last
  // tokens of answers together, `rows` in all; of the last tokens of `answers`.
  void Read(int64_t rows, double seconds);
  void ReadBeside(int64_t rows, double seconds);
  void Decoded(int64_t answers, double seconds);

  // Rows of the next call that reads a part of a prompt, at least one. `streams`: answers are being
  // decoded. Then the call takes about the time of six of their tokens. Otherwise it takes about a
  // second, or the time of two rows if one takes more than half a second. The first two calls have one row.
  int64_t Rows(bool streams) const;

  // True if the time of a decode call of so many answers is known and not old.
  bool Knows(int64_t answers) const;
  // Seconds of a decode call, of late; 0: unknown.
  double decode_seconds() const { return decode_; }

 private:
  int64_t most_;
  bool adaptive_;
  bool warm_ = false;
  double each_ = 0;    // seconds of a row in the last call that read a prompt; 0: unknown
  double single_ = 0;  // seconds of a call of one row, at most; 0: unknown
  double decode_ = 0;
  int64_t answers_ = 0;  // of the last decode call
  int together_ = 0;     // calls of ReadBeside since then
};

}  // namespace rvv_runner
