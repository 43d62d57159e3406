// SPDX-License-Identifier: Apache-2.0
#include "model/mapped_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include "input/errors.h"
#include "input/log.h"
#include "input/md5.h"

namespace rvv_runner {
namespace {

constexpr size_t kDigest = 32;

// A page that cannot be read is a signal, not an error of a call.
void EndWithReason(int) {
  constexpr char kText[] =
      "runner: cannot read the file of --map-params: the disk failed, or the file was shortened\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof(kText) - 1);
  _exit(1);
}

[[noreturn]] void Fail(const std::string& what) {
  throw InputError("--map-params: " + what + ": " + std::strerror(errno));
}

}  // namespace

struct MappedFile::Descriptor {
  explicit Descriptor(int opened) : number(opened) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(number); }  // gives up the lock, too
  int number;
};

MappedFile::MappedFile(const std::string& folder, const std::string& key, size_t bytes, bool check)
    : path_(folder + "/" + key + ".params"), bytes_(bytes) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  const int number = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (number < 0) Fail("cannot open " + path_);
  file_ = std::make_shared<Descriptor>(number);
  Lock(LOCK_SH);
  complete_ = IsComplete(check);
  // Never waits for LOCK_EX: the process that writes the file keeps LOCK_SH for as long as it runs.
  bool waits = false;
  for (auto seen = Changed(); !complete_ && flock(number, LOCK_EX | LOCK_NB) != 0;) {
    if (errno != EWOULDBLOCK && errno != EINTR) Fail("cannot lock " + path_);
    if (!std::exchange(waits, true)) LogWait();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    Lock(LOCK_SH);
    const auto now = Changed();
    if (now != std::exchange(seen, now)) complete_ = IsComplete(check);
  }
  if (!complete_) Reserve();
  void* memory = mmap(nullptr, bytes_, complete_ ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED,
                      file_->number, 0);
  if (memory == MAP_FAILED) Fail("cannot map " + path_);
  memory_ = {static_cast<char*>(memory),
             [bytes, file = file_](char* mapped) { munmap(mapped, bytes); }};
  std::signal(SIGBUS, EndWithReason);
}

void MappedFile::Complete() {
  const std::string digest = Digest();
  const auto behind = static_cast<off_t>(bytes_);
  if (msync(memory_.get(), bytes_, MS_SYNC) != 0 ||
      pwrite(file_->number, digest.data(), kDigest, behind) != static_cast<ssize_t>(kDigest) ||
      fsync(file_->number) != 0 || mprotect(memory_.get(), bytes_, PROT_READ) != 0) {
    Fail("cannot write " + path_);
  }
  complete_ = true;
  Lock(LOCK_SH);
}

void MappedFile::LogWait() const {
  Log(LogLevel::kInfo, "another process writes or reads " + path_ + ": waiting for it");
}

void MappedFile::Lock(int operation) const {
  if (flock(file_->number, operation | LOCK_NB) == 0) return;
  LogWait();
  while (flock(file_->number, operation) != 0) {
    if (errno != EINTR) Fail("cannot lock " + path_);
  }
}

std::filesystem::file_time_type MappedFile::Changed() const {
  std::error_code failed;
  return std::filesystem::last_write_time(path_, failed);
}

bool MappedFile::IsComplete(bool check) const {
  struct stat about = {};
  char digest[kDigest];
  if (fstat(file_->number, &about) != 0 || about.st_size != static_cast<off_t>(bytes_ + kDigest) ||
      pread(file_->number, digest, kDigest, static_cast<off_t>(bytes_)) !=
          static_cast<ssize_t>(kDigest) ||
      digest[0] == '\0') {
    return false;
  }
  if (!check || Digest() == std::string(digest, kDigest)) return true;
  Log(LogLevel::kWarn, path_ + " is damaged: it is written again");
  return false;
}

// Takes the room on the disk at once: a full disk would be a signal in the middle of writing.
void MappedFile::Reserve() const {
  const auto size = static_cast<off_t>(bytes_ + kDigest);
  errno = ftruncate(file_->number, 0) != 0 ? errno : posix_fallocate(file_->number, 0, size);
  if (errno == 0) return;
  const int reason = errno;
  unlink(path_.c_str());
  errno = reason;
  Fail("no room for " + std::to_string(size >> 20) + " MiB in " + path_);
}

// The digest of the file's content.
std::string MappedFile::Digest() const {
  constexpr size_t kBlock = size_t{1} << 20;
  Md5 digest;
  std::string block(kBlock, '\0');
  for (size_t at = 0; at < bytes_; at += kBlock) {
    const size_t count = std::min(kBlock, bytes_ - at);
    const auto read = pread(file_->number, block.data(), count, static_cast<off_t>(at));
    if (read != static_cast<ssize_t>(count)) Fail("cannot read " + path_);
    digest.Add({block.data(), count});
  }
  return digest.Finish();
}

}  // namespace rvv_runner
