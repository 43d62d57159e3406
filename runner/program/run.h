// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace rvv_runner {

extern const char kRunUsage[];

// `runner run OPTIONS`: calls the library's function `main` on tensors from a file, and writes
// what it gives; gives the exit code. Throws InputError for options that are unknown, missing or
// wrong, and for tensors that are not what the function takes.
int RunTensors(const std::vector<std::string>& words);

}  // namespace rvv_runner
