// SPDX-License-Identifier: Apache-2.0
#include "engine/prompt_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "input/errors.h"
#include "input/log.h"
#include "input/md5.h"
#include "input/read_file.h"

namespace rvv_runner {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "mlc-rvv rows 1\n";
constexpr size_t kDigest = 32;
constexpr size_t kTokens = PromptFiles::kBlock * sizeof(int32_t);
constexpr size_t kHead = kMagic.size() + kDigest + kTokens;
constexpr char kEnding[] = ".rows", kPart[] = ".part";
constexpr int64_t kOlder = 1000;  // nanoseconds by which a block counts as older than its parent
constexpr int64_t kDeepest = 1 << 16;

int64_t Now() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string_view BytesOf(const int32_t* tokens) {
  return {reinterpret_cast<const char*>(tokens), kTokens};
}

std::string DigestOf(std::string_view bytes) {
  Md5 digest;
  digest.Add(bytes);
  return digest.Finish();
}

std::string Reason() { return std::strerror(errno); }

}  // namespace

std::string PromptFiles::FileOf(const std::string& parent, const int32_t* tokens,
                                std::string_view rows) {
  std::string file(kMagic);
  for (const std::string_view part : {std::string_view(parent), BytesOf(tokens), rows})
    file += part;
  return file + DigestOf(file);
}

std::optional<std::string> PromptFiles::RowsOf(const std::string& file, const std::string& parent,
                                               const int32_t* tokens) {
  if (file.size() < kHead + kDigest) return std::nullopt;
  std::string rows = file.substr(kHead, file.size() - kHead - kDigest);
  if (file != FileOf(parent, tokens, rows)) return std::nullopt;
  return rows;
}

PromptFiles::PromptFiles(const std::string& folder, const std::string& model, int64_t most,
                         std::function<std::string(size_t)> owner)
    : folder_(folder), model_(model), most_(most), owner_(std::move(owner)), lock_(-1) {
  std::error_code error;
  fs::create_directories(folder, error);
  // Prompts are private.
  if (!error && fs::is_empty(folder, error)) {
    fs::permissions(folder, fs::perms::owner_all, error);
  }
  if (error) throw InputError("--cache-dir: cannot use " + folder + ": " + error.message());
  lock_ = open((folder + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0) throw InputError("--cache-dir: cannot write in " + folder + ": " + Reason());
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    close(lock_);
    throw InputError("--cache-dir: another server uses " + folder + "; give each its own folder");
  }
  Begin();
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == kPart) fs::remove(entry.path(), error);
    struct stat about;
    if (entry.path().extension() != kEnding || stat(entry.path().c_str(), &about) != 0) continue;
    const int64_t used = about.st_mtim.tv_sec * int64_t{1000000000} + about.st_mtim.tv_nsec;
    // A clock that was set back leaves times in the future.
    files_[entry.path().stem()] = {about.st_size, std::min(used, begun_ - 1)};
    bytes_ += about.st_size;
  }
  MakeRoom(0);
}

PromptFiles::~PromptFiles() { close(lock_); }

std::string PromptFiles::Root(size_t owner) const {
  return DigestOf(model_ + "\n" + owner_(owner));
}

std::string PromptFiles::Next(const std::string& parent, const int32_t* tokens) {
  Md5 digest;
  digest.Add(parent);
  digest.Add(BytesOf(tokens));
  return digest.Finish();
}

void PromptFiles::Begin() { begun_ = Now() - kDeepest * kOlder; }

bool PromptFiles::Keep(const std::string& parent, const std::string& block) {
  if (!files_.contains(block)) return false;
  Touch(parent, block);
  return true;
}

std::optional<std::string> PromptFiles::Read(const std::string& parent, const int32_t* tokens) {
  const std::string block = Next(parent, tokens);
  const auto found = files_.find(block);
  if (found == files_.end()) return std::nullopt;
  std::string text;
  try {
    text = ReadFile(PathOf(block));
  } catch (const InputError& error) {
    Log(LogLevel::kWarn, error.what());
  }
  auto rows = RowsOf(text, parent, tokens);
  if (!rows) {
    Log(LogLevel::kWarn, PathOf(block) + " is damaged; it is deleted, and its tokens are computed");
    Delete(block);
    return std::nullopt;
  }
  Touch(parent, block);
  return rows;
}

bool PromptFiles::Write(const std::string& parent, const int32_t* tokens, std::string_view rows) {
  const std::string block = Next(parent, tokens);
  const std::string file = FileOf(parent, tokens, rows);
  const auto size = std::ssize(file);
  if (broken_ || !MakeRoom(size)) return false;
  const std::string part = folder_ + "/" + block + kPart;
  std::ofstream stream(part, std::ios::binary);
  stream.write(file.data(), size);
  stream.close();
  if (!stream || std::rename(part.c_str(), PathOf(block).c_str()) != 0) {
    Log(LogLevel::kWarn, "cannot write " + part + ": " + Reason() + "; no more prompts are stored");
    std::error_code error;
    fs::remove(part, error);
    broken_ = true;
    return false;
  }
  files_[block] = {size, 0};
  bytes_ += size;
  Touch(parent, block);
  return true;
}

void PromptFiles::Touch(const std::string& parent, const std::string& block) {
  const auto above = files_.find(parent);
  const int64_t used = above == files_.end() ? Now() : above->second.used - kOlder;
  files_.at(block).used = used;
  const timespec time = {used / 1000000000, used % 1000000000};
  const timespec both[] = {time, time};
  // Only the order of deletion depends on it.
  utimensat(AT_FDCWD, PathOf(block).c_str(), both, 0);
}

void PromptFiles::Delete(const std::string& block) {
  std::error_code error;
  fs::remove(PathOf(block), error);
  const auto found = files_.find(block);
  bytes_ -= found->second.bytes;
  files_.erase(found);
}

// Deletes files that were not used since Begin(), the longest unused first.
bool PromptFiles::MakeRoom(int64_t bytes) {
  while (bytes_ + bytes > most_) {
    const auto oldest =
        std::ranges::min_element(files_, {}, [](const auto& entry) { return entry.second.used; });
    if (oldest == files_.end() || oldest->second.used >= begun_) return false;
    Delete(std::string(oldest->first));
  }
  return true;
}

}  // namespace rvv_runner
