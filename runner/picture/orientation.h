// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace rvv_runner {

// How a camera held the picture of a JPEG file: rows and columns to exchange, then those to read from
// their end.
struct Orientation {
  bool exchanged = false;
  bool rows = false;
  bool columns = false;
};

// The orientation in a JPEG file's Exif data (tag 0x0112, Exif 2.3); upright without it, and for files
// whose data cannot be read.
Orientation OrientationOf(std::string_view file);

}  // namespace rvv_runner
