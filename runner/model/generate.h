// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/model.h"
#include "program/arguments.h"

namespace rvv_runner {

// Bounds of one run, in tokens.
struct Limits {
  int64_t max_seq;
  int64_t chunk;
};

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<double> prefill_seconds;  // one a prefill call
  std::vector<double> decode_seconds;   // one a decode call
};

// What the library and the arguments allow; throws InputError when the prompt and the answer
// do not fit, or when the model is of a kind that is not run here.
Limits LimitsOf(const Library& library, const Arguments& arguments);

// How many tokens to generate when nobody says: what fits, up to `most`, and at least one.
int64_t DefaultMaxNew(const Library& library, const Arguments& arguments, int64_t most);

// Throws InputError when a token of the prompt is outside of the vocabulary.
void CheckTokens(const std::vector<int32_t>& tokens, int64_t vocabulary);

// Prefills the prompt in chunks and decodes greedily (the first of equal logits) until a stop
// token or `max_new`. `on_logits` sees each row that a token was chosen from, `on_token` each
// token as soon as it is there.
Answer Generate(Model* model, const Arguments& arguments, const Limits& limits,
                const std::function<void(const std::vector<float>&)>& on_logits,
                const std::function<void(int32_t)>& on_token);

}  // namespace rvv_runner
