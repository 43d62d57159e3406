// SPDX-License-Identifier: Apache-2.0
#include "picture/orientation.h"

#include <optional>

namespace rvv_runner {
namespace {

using std::operator""sv;

constexpr uint32_t kOrientation = 0x0112, kShort = 3, kEntry = 12;

// A number of some bytes; nothing if the data end before.
std::optional<uint32_t> NumberAt(std::string_view data, size_t at, size_t bytes, bool big) {
  if (at > data.size() || data.size() - at < bytes) return std::nullopt;
  uint32_t number = 0;
  for (size_t i = 0; i < bytes; ++i) {
    number = number << 8 | static_cast<uint8_t>(data[at + (big ? i : bytes - 1 - i)]);
  }
  return number;
}

// The Exif data: a TIFF file. Empty if the JPEG file has none.
std::string_view ExifOf(std::string_view file) {
  if (!file.starts_with("\xFF\xD8"sv)) return {};
  size_t at = 2;
  while (at + 1 < file.size() && file[at] == '\xFF') {
    const auto marker = static_cast<uint8_t>(file[at + 1]);
    if (marker == 0xDA) return {};  // the pixels begin
    const auto length = NumberAt(file, at + 2, 2, true);
    if (!length || *length < 2 || file.size() - at - 2 < *length) return {};
    const std::string_view segment = file.substr(at + 4, *length - 2);
    if (marker == 0xE1 && segment.starts_with("Exif\0\0"sv)) return segment.substr(6);
    at += 2 + *length;
  }
  return {};
}

uint32_t ValueOf(std::string_view exif) {
  const bool big = exif.starts_with("MM"sv);
  if (!big && !exif.starts_with("II"sv)) return 1;
  const auto first = NumberAt(exif, 4, 4, big);
  const auto count = first ? NumberAt(exif, *first, 2, big) : std::nullopt;
  for (uint32_t i = 0; i < count.value_or(0); ++i) {
    const size_t entry = size_t{*first} + 2 + size_t{kEntry} * i;
    const auto tag = NumberAt(exif, entry, 2, big);
    if (!tag) return 1;
    if (*tag != kOrientation) continue;
    const bool is_short = NumberAt(exif, entry + 2, 2, big) == kShort;
    return NumberAt(exif, entry + 8, is_short ? 2 : 4, big).value_or(1);
  }
  return 1;
}

}  // namespace

Orientation OrientationOf(std::string_view file) {
  switch (ValueOf(ExifOf(file))) {
    case 2: return {false, false, true};
    case 3: return {false, true, true};
    case 4: return {false, true, false};
    case 5: return {true, false, false};
    case 6: return {true, true, false};
    case 7: return {true, true, true};
    case 8: return {true, false, true};
    default: return {};
  }
}

}  // namespace rvv_runner
