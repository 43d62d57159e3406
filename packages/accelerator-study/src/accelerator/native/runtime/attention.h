// SPDX-License-Identifier: Apache-2.0
// Attention on a device: queries by keys and probabilities by values are its products, in int8.
// A token's keys have a scale, and so have its values: nothing in the cache is rounded again when a
// token comes. The scale of a token's values stands along the sum over tokens, and is multiplied
// into the probabilities before these are rounded, with a scale for each query. Softmax is the
// host's, in float64.
#ifndef MLC_RVV_ACCELERATORS_RUNTIME_ATTENTION_H_
#define MLC_RVV_ACCELERATORS_RUNTIME_ATTENTION_H_

#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "runtime/products.h"

namespace accelerator {

// A row of queries that share a head of keys.
struct Query {
  const float* values;    // [width]
  std::uint64_t visible;  // tokens that it sees, from the first on
  float* out;             // [width]
  float* lse;             // logarithm of the sum of its powers, to base 2
};

// Where a token's keys and values of one head are in the host's memory.
struct Token {
  const float* key;    // [width]
  const float* value;  // [width]
};

class Attention {
 public:
  explicit Attention(Products* products) : products_(products) {}

  // One head of keys of one sequence. `resident` tokens are a cache's: their chunk stays in the
  // device's memory under the address of its first token, and what did not change since is not
  // written again.
  // Throws DeviceError where there is no program for heads of that width, where a number is not
  // finite, and with the device's own message.
  void Attend(const std::vector<Query>& queries, const std::vector<Token>& tokens,
              std::uint64_t width, float scale, bool resident);

  // Tokens that were rounded and written to the device so far.
  std::uint64_t written() const { return written_; }

 private:
  // Tokens that lie in the device's memory together, with the floats that they were made from.
  struct Chunk {
    Buffer keys, values;
    std::vector<float> key_scales, value_scales, sources;
    std::uint64_t filled = 0;
  };
  struct Layers {
    const AcceleratorLayer* keys;    // tokens x width
    const AcceleratorLayer* values;  // width x tokens
  };

  using Place = std::pair<const float*, std::uint64_t>;

  // A chunk for a cache's token, or for tokens that no cache keeps.
  Chunk* NewChunk(const Layers& layers, const float* key);
  void Fill(const Layers& layers, const Token* tokens, std::uint64_t count, Chunk* chunk);
  // Keys and values of all tokens, as they are rounded wherever they lie.
  void RecordTokens(const std::vector<Token>& tokens, std::uint64_t width);
  void Run(const std::vector<Query>& queries, const std::vector<Chunk*>& chunks,
           std::uint64_t tokens, const Layers& layers, float scale);

  Products* products_;
  std::map<Place, Chunk> resident_;
  std::map<std::uint64_t, std::deque<Chunk>> spare_;  // by width; used anew by every call
  std::uint64_t written_ = 0;
};

}  // namespace accelerator

#endif  // MLC_RVV_ACCELERATORS_RUNTIME_ATTENTION_H_
