// SPDX-License-Identifier: Apache-2.0
#include "input/utf8.h"

#include <algorithm>

namespace rvv_runner {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

// The continuation that the first byte of a sequence demands.
struct Lead {
  size_t tail = 0;      // bytes that follow; 0: this byte starts no sequence
  uint32_t bits = 0;    // of the code point, in the first byte
  unsigned low = 0x80;  // bounds of the second byte
  unsigned high = 0xBF;
};

Lead LeadOf(unsigned byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {1, byte & 0x1F};
  if (byte == 0xE0) return {2, byte & 0x0F, 0xA0, 0xBF};
  if (byte == 0xED) return {2, byte & 0x0F, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {2, byte & 0x0F};
  if (byte == 0xF0) return {3, byte & 0x07, 0x90, 0xBF};
  if (byte == 0xF4) return {3, byte & 0x07, 0x80, 0x8F};
  if (byte >= 0xF1 && byte <= 0xF3) return {3, byte & 0x07};
  return {};
}

}  // namespace

void AppendUtf8(uint32_t code, std::string* text) {
  if (code < 0x80) {
    text->push_back(static_cast<char>(code));
    return;
  }
  const int tail = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  const uint32_t lead = tail == 1 ? 0xC0 : tail == 2 ? 0xE0 : 0xF0;
  text->push_back(static_cast<char>(lead | (code >> (6 * tail))));
  for (int i = tail - 1; i >= 0; --i) {
    text->push_back(static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3F)));
  }
}

Decoded DecodeAt(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  Decoded decoded;
  decoded.length = 1;
  if (byte(at) < 0x80) {
    decoded.code = byte(at);
    decoded.whole = true;
    return decoded;
  }
  const Lead lead = LeadOf(byte(at));
  if (lead.tail == 0) return decoded;
  decoded.code = lead.bits;
  for (size_t i = 1; i <= lead.tail; ++i) {
    if (at + i == text.size()) {
      decoded.open = true;
      return decoded;
    }
    const unsigned next = byte(at + i);
    const bool fits = i == 1 ? next >= lead.low && next <= lead.high : (next & 0xC0) == 0x80;
    if (!fits) return decoded;
    decoded.code = decoded.code << 6 | (next & 0x3F);
    ++decoded.length;
  }
  decoded.whole = true;
  return decoded;
}

size_t Characters(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

std::string_view WithoutMark(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  return text.substr(text.starts_with(kMark) ? kMark.size() : 0);
}

std::optional<size_t> FirstBroken(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Decoded decoded = DecodeAt(text, at);
    if (!decoded.whole) return at;
    at += decoded.length;
  }
  return std::nullopt;
}

std::string Utf8Stream::Feed(std::string_view bytes) {
  pending_ += bytes;
  std::string out;
  size_t at = 0;
  while (at < pending_.size()) {
    const Decoded decoded = DecodeAt(pending_, at);
    if (decoded.open) break;
    if (decoded.whole) {
      out.append(pending_, at, decoded.length);
    } else {
      out += kReplacement;
    }
    at += decoded.length;
  }
  pending_.erase(0, at);
  return out;
}

std::string Utf8Stream::Finish() {
  const bool left = !pending_.empty();
  pending_.clear();
  return left ? kReplacement : "";
}

}  // namespace rvv_runner
