// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace rvv_runner {

extern const char kRunUsage[];

// `runner run OPTIONS`: calls the library's function `main` on tensors of a file, and writes the
// tensors that it returns. Returns the exit code. Throws InputError for unknown, missing or wrong
// options, and for tensors that do not fit the function.
int RunTensors(const std::vector<std::string>& words);

}  // namespace rvv_runner
