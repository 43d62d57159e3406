// SPDX-License-Identifier: Apache-2.0
#include "input/md5.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace rvv_runner {
namespace {

// The integer part of 2^32 |sin(i + 1)|.
std::array<uint32_t, 64> Sines() {
  std::array<uint32_t, 64> sines;
  for (int i = 0; i < 64; ++i) {
    sines[i] = static_cast<uint32_t>(std::floor(std::ldexp(std::fabs(std::sin(i + 1.0)), 32)));
  }
  return sines;
}

// Bytes are read in the order of the machine: those that the runner knows are little-endian.
static_assert(std::endian::native == std::endian::little);

}  // namespace

void Md5::AddBlock(const char* block) {
  static const std::array<uint32_t, 64> kSines = Sines();
  static constexpr int kTurns[4][4] = {
      {7, 12, 17, 22}, {5, 9, 14, 20}, {4, 11, 16, 23}, {6, 10, 15, 21}};
  std::array<uint32_t, 16> words;
  std::memcpy(words.data(), block, kBlock);
  auto [a, b, c, d] = state_;
  const auto step = [&](uint32_t mixed, int i, int word, int turn) {
    const uint32_t sum = a + mixed + kSines[i] + words[word];
    a = d;
    d = c;
    c = b;
    b += std::rotl(sum, turn);
  };
  for (int i = 0; i < 16; ++i) step((b & c) | (~b & d), i, i, kTurns[0][i % 4]);
  for (int i = 0; i < 16; ++i) step((d & b) | (~d & c), 16 + i, (5 * i + 1) % 16, kTurns[1][i % 4]);
  for (int i = 0; i < 16; ++i) step(b ^ c ^ d, 32 + i, (3 * i + 5) % 16, kTurns[2][i % 4]);
  for (int i = 0; i < 16; ++i) step(c ^ (b | ~d), 48 + i, 7 * i % 16, kTurns[3][i % 4]);
  state_ = {state_[0] + a, state_[1] + b, state_[2] + c, state_[3] + d};
}

void Md5::Add(std::string_view bytes) {
  const size_t held = count_ % kBlock;
  count_ += bytes.size();
  if (held > 0) {
    const size_t taken = std::min(bytes.size(), kBlock - held);
    std::memcpy(rest_.data() + held, bytes.data(), taken);
    bytes.remove_prefix(taken);
    if (held + taken < kBlock) return;
    AddBlock(rest_.data());
  }
  for (; bytes.size() >= kBlock; bytes.remove_prefix(kBlock)) AddBlock(bytes.data());
  std::memcpy(rest_.data(), bytes.data(), bytes.size());
}

std::string Md5::Finish() {
  const uint64_t bits = count_ * 8;
  // One bit, and zeros up to the length.
  std::string tail(1 + (kBlock + 55 - count_ % kBlock) % kBlock, '\0');
  tail[0] = static_cast<char>(0x80);
  tail.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
  Add(tail);
  std::string text;
  for (const uint32_t word : state_) {
    for (int shift = 0; shift < 32; shift += 8) {
      char digits[3];
      std::snprintf(digits, sizeof(digits), "%02x", word >> shift & 0xFF);
      text += digits;
    }
  }
  return text;
}

}  // namespace rvv_runner
