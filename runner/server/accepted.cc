// SPDX-License-Identifier: Apache-2.0
#include "server/accepted.h"

namespace rvv_runner {

bool SameKey(const std::string& given, const std::string& key) {
  volatile size_t differs = given.size() ^ key.size();
  for (size_t i = 0; i < given.size(); ++i) {
    const char expected = key.empty() ? '\0' : key[i % key.size()];
    differs = differs | static_cast<unsigned char>(given[i] ^ expected);
  }
  return differs == 0;
}

void Accepted::Replace(const std::vector<std::string>& texts) {
  const std::lock_guard guard(mutex_);
  for (const std::string& text : texts) numbers_.emplace(text, numbers_.size());
  texts_ = texts;
}

bool Accepted::empty() const {
  const std::lock_guard guard(mutex_);
  return texts_.empty();
}

std::optional<size_t> Accepted::Find(const std::string& text) const {
  const std::lock_guard guard(mutex_);
  std::optional<size_t> found;
  for (const std::string& one : texts_) {
    if (SameKey(text, one)) found = numbers_.at(one);
  }
  return found;
}

std::string Accepted::Text(size_t number) const {
  const std::lock_guard guard(mutex_);
  for (const auto& [text, its] : numbers_) {
    if (its == number) return text;
  }
  return "";
}

}  // namespace rvv_runner
