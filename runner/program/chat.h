// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "program/arguments.h"

namespace rvv_runner {

// Chats turn by turn over the standard input and output. Returns the exit code. Only answers go to
// the standard output; everything else goes to the standard error.
int Chat(const Arguments& arguments);

}  // namespace rvv_runner
