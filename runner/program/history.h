// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace rvv_runner {

// What was typed before, the newest last, also in earlier runs.
class History {
 public:
  // Reads the file, if there is one; it keeps its last kMost entries. With an empty path, nothing
  // is kept. Throws InputError if the file cannot be read.
  explicit History(std::string path);

  const std::vector<std::string>& entries() const { return entries_; }
  // Also writes it to the file, which only its owner may read. A repeated entry, an empty one and
  // one of more than kMostBytes are left out. Throws InputError if it cannot be written; then the
  // file is not tried again.
  void Add(const std::string& entry);

  static constexpr size_t kMost = 1000;
  static constexpr size_t kMostBytes = size_t{64} << 10;

 private:
  std::string path_;
  std::vector<std::string> entries_;
};

// ~/.mlc_rvv_history; empty without a home.
std::string HistoryFile();

}  // namespace rvv_runner
