// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>

namespace rvv_runner {

// A file of parameters as the library computes with them, mapped into memory. The kernel reads its
// pages when they are used and drops them when memory is needed, so that they may be larger than it.
class MappedFile {
 public:
  // Opens or makes FOLDER/KEY.params with `bytes` of content; files of the same key have the same
  // content. Waits while another process writes the file. A file that was not completed is written
  // again; `check`: also a file whose content does not have the digest behind it. Throws InputError
  // if the file cannot be made, or the disk has no room for it.
  MappedFile(const std::string& folder, const std::string& key, size_t bytes, bool check);

  // True if the content is there. Else it has to be written, and then Complete called.
  bool complete() const { return complete_; }
  // Stays mapped, and the file in use, as long as somebody holds it.
  const std::shared_ptr<char>& memory() const { return memory_; }
  // Writes the content to the disk, then its digest. The memory can only be read afterwards.
  void Complete();

 private:
  struct Descriptor;

  void LogWait() const;
  void Lock(int operation) const;
  std::filesystem::file_time_type Changed() const;
  bool IsComplete(bool check) const;
  void Reserve() const;
  std::string Digest() const;

  std::string path_;
  size_t bytes_;
  std::shared_ptr<Descriptor> file_;
  std::shared_ptr<char> memory_;
  bool complete_ = false;
};

}  // namespace rvv_runner
