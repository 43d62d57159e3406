// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rvv_runner {

// Keys and values of prompts in a folder, so that they survive a restart. A file holds those of a
// block of tokens. Its name is a digest of the model, the owner, and all tokens up to the block's
// last one: prompts with the same beginning share files. A file is complete when it has its name;
// its digest reveals damage. When the folder is full, files that were not used for the longest time
// are deleted. Only one thread may use an object.
class PromptFiles {
 public:
  static constexpr int64_t kBlock = 16;  // tokens of a file

  // The bytes of a file.
  static std::string FileOf(const std::string& parent, const int32_t* tokens,
                            std::string_view rows);
  // The rows in a file; nothing if it is damaged, or of other tokens.
  static std::optional<std::string> RowsOf(const std::string& file, const std::string& parent,
                                           const int32_t* tokens);

  // Opens a folder for this process alone, and creates it if it is missing. `model`: identifies the
  // model and the layout of its rows. `most`: bytes of all files. Throws InputError if the folder
  // cannot be written, or if another process has opened it.
  // `owner` names an owner's number; the name is the same after a restart.
  PromptFiles(const std::string& folder, const std::string& model, int64_t most,
              std::function<std::string(size_t)> owner);
  ~PromptFiles();
  PromptFiles(const PromptFiles&) = delete;
  PromptFiles& operator=(const PromptFiles&) = delete;

  // The digest that comes before an owner's first block.
  std::string Root(size_t owner) const;
  // The digest of a block of tokens after another block.
  static std::string Next(const std::string& parent, const int32_t* tokens);

  // True if there is a file of a block; it counts as used.
  bool Keep(const std::string& parent, const std::string& block);
  // Reads the rows of a block. Nothing if there is no such file; a damaged one is deleted with a
  // warning.
  std::optional<std::string> Read(const std::string& parent, const int32_t* tokens);
  // Writes the rows of a block. Returns false if all files were used since Begin() and leave no
  // room, or if the folder cannot be written any more (with a warning, once).
  bool Write(const std::string& parent, const int32_t* tokens, std::string_view rows);

  // What is used from now on is not deleted to make room, until Begin() is called again.
  void Begin();

  int64_t bytes() const { return bytes_; }
  size_t files() const { return files_.size(); }

 private:
  struct File {
    int64_t bytes;
    int64_t used;  // nanoseconds of its last use; a block counts as older than its parent
  };

  std::string PathOf(const std::string& block) const { return folder_ + "/" + block + ".rows"; }
  void Touch(const std::string& parent, const std::string& block);
  void Delete(const std::string& block);
  bool MakeRoom(int64_t bytes);

  std::string folder_;
  std::string model_;
  int64_t most_;
  std::function<std::string(size_t)> owner_;
  int lock_;
  int64_t bytes_ = 0;
  int64_t begun_ = 0;
  bool broken_ = false;
  std::map<std::string, File> files_;
};

}  // namespace rvv_runner
