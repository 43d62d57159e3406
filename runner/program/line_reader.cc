// SPDX-License-Identifier: Apache-2.0
#include "program/line_reader.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <iostream>
#include <string_view>

#include "input/errors.h"
#include "program/edited_line.h"
#include "program/keys.h"

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

// The settings of the terminal from before the program, also for signal handlers.
termios original;
bool changed = false;

void Restore() {
  if (!changed) return;
  tcsetattr(STDIN_FILENO, TCSANOW, &original);
  if (write(STDERR_FILENO, kPasteOff.data(), kPasteOff.size()) < 0) return;
}

void OnEnd(int signal) {
  Restore();
  raise(signal);  // with SA_RESETHAND: ends the program
}

void Handle(int signal, void (*handler)(int), int flags);
void Listen(bool editing);
volatile sig_atomic_t listens_to_keys = 0;

// Gives the shell its settings of the terminal while the program is stopped.
void OnStop(int signal) {
  const int before = errno;
  Restore();
  Handle(signal, SIG_DFL, 0);
  raise(signal);
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, signal);
  pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);  // stops here
  Handle(signal, OnStop, SA_RESTART);
  Listen(listens_to_keys);
  errno = before;
}

void Handle(int signal, void (*handler)(int), int flags) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

// Lets the program see each key. `editing`: Ctrl-C and others are keys, too; otherwise, while an
// answer is written, they are signals.
void Listen(bool editing) {
  listens_to_keys = editing;
  termios settings = original;
  // Enter and a pasted line end are told apart by their bytes.
  if (editing) settings.c_iflag &= ~static_cast<tcflag_t>(ICRNL | INLCR);
  settings.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | (editing ? ISIG : 0));
  settings.c_cc[VMIN] = 1;
  settings.c_cc[VTIME] = 0;
  tcsetattr(STDIN_FILENO, TCSANOW, &settings);
}

bool Editable() {
  const char* term = std::getenv("TERM");
  const bool dumb = term == nullptr || std::string_view(term) == "dumb";
  return !dumb && LineReader::terminal() && isatty(STDERR_FILENO) == 1;
}

winsize Size() {
  winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) {
    size.ws_col = 80;
    size.ws_row = 24;
  }
  return size;
}

constexpr size_t kLongestLine = size_t{16} << 20;
constexpr char kPrompt[] = "> ";

}  // namespace

LineReader::LineReader(const std::string& history)
    : edits_(Editable()), history_(edits_ ? history : "") {
  if (wake[0] < 0 && pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0) {
    throw InputError("cannot make a pipe");
  }
  Handle(SIGINT, OnInterrupt, SA_RESTART);  // do not interrupt a write
  if (!edits_) return;
  tcgetattr(STDIN_FILENO, &original);
  changed = true;
  for (const int signal : {SIGTERM, SIGHUP, SIGQUIT}) Handle(signal, OnEnd, SA_RESETHAND);
  Handle(SIGTSTP, OnStop, SA_RESTART);
  Listen(false);
}

LineReader::~LineReader() {
  if (edits_) Restore();
  changed = false;
}

std::optional<LineReader::Line> LineReader::Next(const std::string& text) {
  return edits_ ? NextEdited(text) : NextPlain();
}

LineReader::Got LineReader::Read() {
  if (pending_.size() > kLongestLine) throw InputError("a line is longer than 16 MiB");
  while (true) {
    pollfd asked[] = {{STDIN_FILENO, POLLIN, 0}, {wake[0], POLLIN, 0}};
    char bytes[4096];
    if (poll(asked, 2, -1) < 0 && errno == EINTR) continue;
    if (asked[1].revents != 0) {
      while (read(wake[0], bytes, sizeof(bytes)) > 0) continue;
      // A Ctrl-C that already ended an answer is not one of this line.
      if (!Interrupted()) continue;
      return Got::kInterrupt;
    }
    const ssize_t count = read(STDIN_FILENO, bytes, sizeof(bytes));
    // A terminal that is gone is the end of its input.
    if (count < 0 && !(edits_ && errno == EIO)) throw InputError("cannot read the standard input");
    if (count <= 0) return Got::kEnd;
    pending_.append(bytes, static_cast<size_t>(count));
    return Got::kBytes;
  }
}

std::optional<LineReader::Line> LineReader::NextPlain() {
  if (terminal()) std::cerr << kPrompt << std::flush;
  while (true) {
    if (const size_t end = pending_.find('\n'); end != std::string::npos) {
      Line line{pending_.substr(0, end)};
      pending_.erase(0, end + 1);
      return line;
    }
    const Got got = Read();
    if (got == Got::kBytes) continue;
    Line line{got == Got::kInterrupt ? "" : pending_, got == Got::kInterrupt};
    const bool over = got == Got::kEnd && pending_.empty();
    pending_.clear();
    if (over) return std::nullopt;
    return line;
  }
}

std::optional<LineReader::Line> LineReader::NextEdited(const std::string& text) {
  using Result = EditedLine::Result;
  EditedLine line(text, history_.entries());
  const auto draw = [&] {
    const winsize size = Size();
    std::cerr << line.Draw(kPrompt, size.ws_col, size.ws_row) << std::flush;
  };
  Listen(true);
  std::cerr << kPasteOn;
  draw();
  Result result = Result::kChanged;
  while (result == Result::kChanged) {
    Key key;
    if (TakeKey(&pending_, &key)) {
      result = line.Press(key);
      if (key.kind == Key::Kind::kRedraw) std::cerr << "\x1B[2J\x1B[H";
      if (key.kind == Key::Kind::kSuspend) {
        std::cerr << "\r\n" << std::flush;
        raise(SIGTSTP);
        std::cerr << kPasteOn;
        line.Redrawn();
      }
      continue;
    }
    draw();
    const Got got = Read();
    if (got == Got::kInterrupt) {
      result = Result::kInterrupted;
      pending_.clear();
    }
    if (got == Got::kEnd) result = Result::kEnd;
  }
  line.ToEnd();
  draw();
  std::cerr << kPasteOff << "\n" << std::flush;
  Listen(false);
  if (result == Result::kEnd) return std::nullopt;
  if (result == Result::kInterrupted) return Line{"", true};
  try {
    history_.Add(line.text());
  } catch (const InputError& error) {
    std::cerr << error.what() << "\n";
  }
  return Line{line.text()};
}

bool LineReader::Interrupted() {
  if (!interrupted) return false;
  interrupted = 0;
  return true;
}

size_t LineReader::Columns() { return isatty(STDOUT_FILENO) == 1 ? Size().ws_col : 0; }

bool LineReader::terminal() { return isatty(STDIN_FILENO) == 1; }

}  // namespace rvv_runner
