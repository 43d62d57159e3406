// SPDX-License-Identifier: Apache-2.0
#include "input/log.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <iostream>

#include "input/errors.h"

namespace rvv_runner {
namespace {

struct Level {
  const char* name;
  const char* priority;  // syslog's, as sd-daemon(3) writes it
};

constexpr std::array<Level, 4> kLevels = {
    {{"error", "<3>"}, {"warn", "<4>"}, {"info", "<6>"}, {"debug", "<7>"}}};

std::atomic<LogLevel> most_detailed = LogLevel::kInfo;

// systemd names the journal's stream by device and inode. A program may inherit the variable from a
// service and write elsewhere.
bool WritesToJournal() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat about;
  if (stream == nullptr || fstat(STDERR_FILENO, &about) != 0) return false;
  return std::to_string(about.st_dev) + ":" + std::to_string(about.st_ino) == stream;
}

}  // namespace

LogLevel ParseLogLevel(const std::string& name) {
  for (size_t i = 0; i < kLevels.size(); ++i) {
    if (name == kLevels[i].name) return static_cast<LogLevel>(i);
  }
  throw InputError("--log-level: '" + name + "' is not one of error, warn, info, debug");
}

void SetLogLevel(LogLevel most) { most_detailed = most; }

void Log(LogLevel level, const std::string& text) {
  if (level > most_detailed) return;
  static const bool journal = WritesToJournal();
  const char* priority = journal ? kLevels[static_cast<size_t>(level)].priority : "";
  std::cerr << priority + ("runner: " + text + "\n");
}

std::string Loggable(const std::string& text) {
  constexpr size_t kMost = 200;
  std::string plain;
  for (const char c : text.substr(0, kMost)) plain += c >= ' ' && c < 127 && c != '"' ? c : '?';
  return text.size() > kMost ? plain + "..." : plain;
}

}  // namespace rvv_runner
