// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace rvv_runner {

// True if the texts are equal. Its time depends only on the length of `given`.
bool SameKey(const std::string& given, const std::string& key);

// Texts that clients may send: keys, or names of the model. Any thread may replace them while
// others look them up.
class Accepted {
 public:
  explicit Accepted(const std::vector<std::string>& texts = {}) { Replace(texts); }

  void Replace(const std::vector<std::string>& texts);
  bool empty() const;
  // The number of an accepted text. A text keeps its number for the life of the program: another
  // one never gets it. The time does not depend on which text it is.
  std::optional<size_t> Find(const std::string& text) const;
  // The text of a number; empty if no text has it.
  std::string Text(size_t number) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, size_t> numbers_;  // of all texts that ever were accepted
  std::vector<std::string> texts_;         // that are accepted now
};

}  // namespace rvv_runner
