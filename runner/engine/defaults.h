// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "engine/sampling.h"

namespace rvv_runner {

// Sampling as the model's mlc-chat-config.json says, in the folder of its parameters; without that
// file MLC-LLM's own: temperature 1, all tokens, no penalties. Throws InputError when it is malformed.
Sampling DefaultSampling(const std::string& folder);

}  // namespace rvv_runner
