// SPDX-License-Identifier: Apache-2.0
#include "program/line_reader.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "input/errors.h"

namespace rvv_runner {
namespace {

volatile sig_atomic_t interrupted = 0;

// The handler writes a byte here, so that poll() also sees a signal from before its wait.
int wake[2] = {-1, -1};

void OnInterrupt(int) {
  const int before = errno;
  interrupted = 1;
  // If the pipe is full, poll() wakes up anyway.
  if (write(wake[1], "", 1) < 0) errno = before;
}

constexpr size_t kLongestLine = size_t{16} << 20;

}  // namespace

LineReader::LineReader() {
  if (wake[0] < 0 && pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0) {
    throw InputError("cannot make a pipe");
  }
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;
  action.sa_flags = SA_RESTART;  // do not interrupt a write
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
}

std::optional<LineReader::Line> LineReader::Next() {
  while (true) {
    if (const size_t end = pending_.find('\n'); end != std::string::npos) {
      Line line{pending_.substr(0, end)};
      pending_.erase(0, end + 1);
      return line;
    }
    if (pending_.size() > kLongestLine) throw InputError("a line is longer than 16 MiB");
    pollfd asked[] = {{STDIN_FILENO, POLLIN, 0}, {wake[0], POLLIN, 0}};
    char bytes[4096];
    if (poll(asked, 2, -1) < 0 && errno == EINTR) continue;
    if (asked[1].revents != 0) {
      while (read(wake[0], bytes, sizeof(bytes)) > 0) continue;
      // This Ctrl-C already ended an answer.
      if (!Interrupted()) continue;
      pending_.clear();
      return Line{"", true};
    }
    const ssize_t count = read(STDIN_FILENO, bytes, sizeof(bytes));
    if (count < 0) throw InputError("cannot read the standard input");
    if (count == 0) {
      if (pending_.empty()) return std::nullopt;
      Line line{pending_};
      pending_.clear();
      return line;
    }
    pending_.append(bytes, static_cast<size_t>(count));
  }
}

bool LineReader::Interrupted() {
  if (!interrupted) return false;
  interrupted = 0;
  return true;
}

bool LineReader::terminal() { return isatty(STDIN_FILENO) == 1; }

}  // namespace rvv_runner
