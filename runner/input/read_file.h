// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

namespace rvv_runner {

// Reads a file; "-" is the standard input. Throws InputError if it cannot be read or is longer than
// `most` bytes, since a device or a pipe may never end.
std::string ReadFile(const std::string& path, size_t most = size_t{1} << 30);

}  // namespace rvv_runner
