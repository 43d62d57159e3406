// SPDX-License-Identifier: Apache-2.0
#include "input/output_file.h"

#include <filesystem>
#include <system_error>

#include "input/errors.h"

namespace rvv_runner {

OutputFile::OutputFile(const std::string& option, const std::string& path)
    : option_(option), path_(path), stream_(path, std::ios::binary | std::ios::trunc) {
  if (!stream_) throw InputError(option + ": cannot write " + path);
}

OutputFile::~OutputFile() {
  if (whole_) return;
  stream_.close();
  std::error_code error;
  // Follow links, which stay.
  const std::filesystem::path target = std::filesystem::canonical(path_, error);
  if (!error && is_regular_file(target, error)) remove(target, error);
}

void OutputFile::Write(const void* data, size_t bytes) {
  stream_.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
}

void OutputFile::Close() {
  stream_.close();
  if (!stream_) throw RunError(option_ + ": writing " + path_ + " failed; is the disk full?");
  whole_ = true;
}

}  // namespace rvv_runner
