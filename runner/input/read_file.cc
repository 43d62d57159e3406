// SPDX-License-Identifier: Apache-2.0
#include "input/read_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <system_error>
#include <vector>

#include "input/errors.h"

namespace rvv_runner {
namespace {

std::string ReadAll(std::istream& stream, const std::string& path, size_t most) {
  std::string text;
  std::vector<char> part(1 << 16);
  while (stream) {
    stream.read(part.data(), static_cast<std::streamsize>(part.size()));
    text.append(part.data(), static_cast<size_t>(stream.gcount()));
    if (text.size() > most) {
      throw InputError(path + " is longer than " + std::to_string(most) + " bytes");
    }
  }
  if (stream.bad()) throw InputError("cannot read " + path);
  return text;
}

}  // namespace

std::string ReadFile(const std::string& path, size_t most) {
  if (path == "-") return ReadAll(std::cin, "the standard input", most);
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw InputError("cannot read " + path + ": " + std::strerror(errno));
  std::error_code none;
  // A folder can be opened, and fails at the first read.
  if (std::filesystem::is_directory(path, none)) {
    throw InputError("cannot read " + path + ": it is a folder");
  }
  return ReadAll(stream, path, most);
}

}  // namespace rvv_runner
