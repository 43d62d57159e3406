// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "program/arguments.h"

namespace rvv_runner {

// Talks turn by turn over the standard input and output; gives the exit code. The answers alone go
// to the standard output, all else to the standard error.
int Chat(const Arguments& arguments);

}  // namespace rvv_runner
