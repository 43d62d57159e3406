// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <fstream>
#include <string>

namespace rvv_runner {

// A file that an option names. Unless it is closed, it is removed in the end, because a part of it
// could pass for the whole; a device or a pipe stays.
class OutputFile {
 public:
  // Throws InputError if the file cannot be opened.
  OutputFile(const std::string& option, const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void Write(const void* data, size_t bytes);
  // Throws RunError if not everything was written.
  void Close();

 private:
  std::string option_;
  std::string path_;
  std::ofstream stream_;
  bool whole_ = false;
};

}  // namespace rvv_runner
