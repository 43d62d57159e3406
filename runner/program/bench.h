// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace rvv_runner {

// `runner bench OPTIONS`: measures tokens a second of prompts and of decoding on this machine, for
// several numbers of threads, and prints them as a table or as JSON. Returns the exit code. Throws
// InputError for unknown, missing or wrong options.
int Bench(const std::vector<std::string>& words);

}  // namespace rvv_runner
