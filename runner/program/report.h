// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "engine/request.h"
#include "program/arguments.h"

namespace rvv_runner {

// Prints the result as text or, with --json, as JSON. `beside`: the tokens of the other answers of
// the batch. `vectors`: those of the texts of an encoder, which gives nothing else. `text`: the
// answer as text, if there is a tokenizer. `vlen`: bits in a vector register that the library was
// compiled for. `device`: the counters of an accelerator as JSON.
void Report(const Arguments& arguments, int64_t vlen, const std::vector<int32_t>& tokens,
            const std::vector<std::vector<int32_t>>& beside,
            const std::vector<std::vector<float>>& vectors, const Ended& ended,
            const std::optional<std::string>& text, const std::string& device, std::ostream& out);

}  // namespace rvv_runner
