// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "model/model.h"
#include "program/arguments.h"

namespace rvv_runner {

// Bounds of one run, in tokens. --roi-depth is not part of them.
struct Limits {
  int64_t max_seq;
  int64_t chunk;
};

// The limits that the library and the arguments set for any prompt. Throws InputError when they
// contradict each other, or when the runner cannot run this kind of model.
Limits MostOf(const Library& library, const Arguments& arguments);

// The limits for the prompt of the arguments. Throws InputError when prompt and answer do not
// fit, or when the runner cannot run this kind of model.
Limits LimitsOf(const Library& library, const Arguments& arguments);

// The number of tokens to generate without --max-new: what fits, at most `most`, at least one.
int64_t DefaultMaxNew(const Library& library, const Arguments& arguments, int64_t most);

}  // namespace rvv_runner
