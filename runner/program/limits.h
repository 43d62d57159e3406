// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "model/model.h"
#include "program/arguments.h"

namespace rvv_runner {

// Bounds of one run, in tokens.
struct Limits {
  int64_t max_seq;
  int64_t chunk;
};

// The most that the library and the arguments allow, whatever the prompt; throws InputError when they
// do not agree, or when the model is of a kind that is not run here.
Limits MostOf(const Library& library, const Arguments& arguments);

// What the library and the arguments allow; throws InputError when the prompt and the answer
// do not fit, or when the model is of a kind that is not run here.
Limits LimitsOf(const Library& library, const Arguments& arguments);

// How many tokens to generate when nobody says: what fits, up to `most`, and at least one.
int64_t DefaultMaxNew(const Library& library, const Arguments& arguments, int64_t most);

}  // namespace rvv_runner
