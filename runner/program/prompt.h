// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "program/arguments.h"

namespace rvv_runner {

// Answers the prompt of the command line. Returns the exit code.
int AnswerPrompt(Arguments arguments);

}  // namespace rvv_runner
