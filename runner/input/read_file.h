// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

namespace rvv_runner {

// A file's bytes; "-" is the standard input. Throws InputError when it cannot be read, or when it
// is longer than `most`: a device or a pipe may never end.
std::string ReadFile(const std::string& path, size_t most = size_t{1} << 30);

}  // namespace rvv_runner
