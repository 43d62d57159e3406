// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace rvv_runner {

extern const char kServeUsage[];

// `runner serve OPTIONS`: the model behind OpenAI's protocol, until a signal to stop; gives the
// exit code. Throws InputError for options that are unknown, missing or wrong.
int Serve(const std::vector<std::string>& words);

}  // namespace rvv_runner
