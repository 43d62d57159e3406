// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace rvv_runner {

extern const char kServeUsage[];

// `runner serve OPTIONS`: serves the model with OpenAI's protocol until a signal to stop. Returns
// the exit code. Throws InputError for unknown, missing or wrong options. Weak: null in a program
// that is linked without the server.
[[gnu::weak]] int Serve(const std::vector<std::string>& words);

}  // namespace rvv_runner
