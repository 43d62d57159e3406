// SPDX-License-Identifier: Apache-2.0
#include "runtime/record.h"

#include <cstdlib>
#include <string>

#include "runtime/products.h"

namespace accelerator {
namespace {

constexpr const char* kVariable = "MLC_RVV_ACCELERATOR_RECORD";

[[noreturn]] void Refuse() {
  throw DeviceError(std::string("the file that ") + kVariable + " names cannot be written");
}

}  // namespace

Record::Record() {
  const char* path = std::getenv(kVariable);
  if (path == nullptr || *path == '\0') return;
  out_.open(path, std::ios::binary | std::ios::trunc);
  if (!out_) Refuse();
}

void Record::Append(const std::int8_t* values, const float* scales, std::uint64_t rows,
                    std::uint64_t columns) {
  if (!wanted()) return;
  const std::uint32_t sizes[] = {static_cast<std::uint32_t>(rows),
                                 static_cast<std::uint32_t>(columns)};
  out_.write(reinterpret_cast<const char*>(sizes), sizeof(sizes));
  out_.write(reinterpret_cast<const char*>(scales),
             static_cast<std::streamsize>(rows * sizeof(float)));
  out_.write(reinterpret_cast<const char*>(values), static_cast<std::streamsize>(rows * columns));
  if (!out_.flush()) Refuse();
}

}  // namespace accelerator
