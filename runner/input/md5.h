// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace rvv_runner {

// The digest of RFC 1321, which MLC-LLM writes for each shard of parameters. It reveals damage, not
// a forgery.
class Md5 {
 public:
  void Add(std::string_view bytes);
  // 32 hexadecimal digits in lower case. Call it once, after all bytes.
  std::string Finish();

 private:
  static constexpr size_t kBlock = 64;

  void AddBlock(const char* block);

  std::array<uint32_t, 4> state_ = {0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476};
  std::array<char, kBlock> rest_;  // the beginning of the next block
  uint64_t count_ = 0;             // bytes so far
};

}  // namespace rvv_runner
