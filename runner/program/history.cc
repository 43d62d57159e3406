// SPDX-License-Identifier: Apache-2.0
#include "program/history.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <utility>

#include "input/errors.h"
#include "input/read_file.h"
#include "input/utf8.h"

namespace rvv_runner {
namespace {

constexpr size_t kLongestFile = size_t{64} << 20;

// An entry as one line.
std::string Line(const std::string& entry) {
  std::string line;
  for (const char c : entry) line += c == '\n' ? "\\n" : c == '\\' ? "\\\\" : std::string(1, c);
  return line + "\n";
}

std::string Entry(const std::string& line) {
  std::string entry;
  for (size_t at = 0; at < line.size(); ++at) {
    const bool escaped = line[at] == '\\' && at + 1 < line.size();
    if (escaped) ++at;
    entry += escaped && line[at] == 'n' ? '\n' : line[at];
  }
  return entry;
}

// Writes to a file that only its owner may read. Returns false if that fails.
bool Write(const std::string& path, int how, const std::string& text) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | how, 0600);
  if (file < 0) return false;
  const bool whole = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  return close(file) == 0 && whole;
}

}  // namespace

History::History(std::string path) : path_(std::move(path)) {
  if (path_.empty() || !std::filesystem::exists(path_)) return;
  std::istringstream lines(ReadFile(path_, kLongestFile));
  for (std::string line; std::getline(lines, line);) {
    if (!FirstBroken(line)) entries_.push_back(Entry(line));
  }
  if (entries_.size() <= kMost) return;
  entries_.erase(entries_.begin(), entries_.end() - static_cast<std::ptrdiff_t>(kMost));
  std::string text;
  for (const std::string& entry : entries_) text += Line(entry);
  // Whole or not at all; if it fails, the file only stays long.
  const std::string part = path_ + ".part";
  if (!Write(part, O_TRUNC, text) || std::rename(part.c_str(), path_.c_str()) != 0) {
    std::remove(part.c_str());
  }
}

void History::Add(const std::string& entry) {
  const bool repeated = !entries_.empty() && entries_.back() == entry;
  if (entry.empty() || entry.size() > kMostBytes || repeated) return;
  entries_.push_back(entry);
  if (path_.empty() || Write(path_, O_APPEND, Line(entry))) return;
  throw InputError("cannot write " + std::exchange(path_, "") + ": the history is not kept");
}

std::string HistoryFile() {
  const char* home = std::getenv("HOME");
  return home == nullptr || *home == '\0' ? "" : std::string(home) + "/.mlc_rvv_history";
}

}  // namespace rvv_runner
