// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "engine/sampling.h"

namespace rvv_runner {

// The sampling of the model's mlc-chat-config.json in the folder of its parameters. Without the
// file, MLC-LLM's defaults: temperature 1, all tokens, no penalties. Throws InputError if the file
// is malformed.
Sampling DefaultSampling(const std::string& folder);

}  // namespace rvv_runner
