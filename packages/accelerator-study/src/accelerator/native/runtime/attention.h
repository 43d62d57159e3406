// SPDX-License-Identifier: Apache-2.0
// Attention on a device, which multiplies queries by keys and probabilities by values, in int8.
// A token's keys have a scale, and so have its values: a new token never changes the rounding of
// cached tokens. The scale of a token's values varies along the sum over tokens: it is multiplied
// into the probabilities, which are then rounded with a scale for each query. The host computes the
// softmax in float64.
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
  std::uint64_t visible;  // number of the first tokens that the query sees
  float* out;             // [width]
  float* lse;             // base-2 logarithm of the sum of the scores' exponentials
};

// The addresses of a token's key and value of a head, in the host's memory.
struct Token {
  const float* key;    // [width]
  const float* value;  // [width]
};

class Attention {
 public:
  explicit Attention(Products* products) : products_(products) {}

  // Computes attention of queries to a sequence's tokens of one head of keys. The tokens of a cache
  // are `resident`: their chunk stays in the device's memory under the address of its first token,
  // and unchanged tokens are not written again.
  // A query that is not finite, or that sees such a key or value, gives a row of NaN.
  // Throws DeviceError if the image has no program for heads of that width, or with the device's
  // message.
  void Attend(const std::vector<Query>& queries, const std::vector<Token>& tokens,
              std::uint64_t width, float scale, bool resident);

  // Returns the number of tokens that were rounded and written to the device so far.
  std::uint64_t written() const { return written_; }

 private:
  // Rounded tokens in the device's memory, and their keys and values in float32.
  struct Chunk {
    Memory keys, values;
    std::vector<float> key_scales, value_scales, sources;
    std::uint64_t filled = 0;
  };
  struct Layers {
    const AcceleratorLayer* keys;    // tokens x width
    const AcceleratorLayer* values;  // width x tokens
  };

  using Place = std::pair<const float*, std::uint64_t>;

  // Adds a chunk for the cache's tokens from `key` on; null: for tokens outside of a cache.
  Chunk* NewChunk(const Layers& layers, const float* key);
  // Rounds `count` tokens and writes the changed ones to a chunk.
  void Fill(const Layers& layers, const Token* tokens, std::uint64_t count, Chunk* chunk);
  // Records the rounded keys and values of all tokens.
  void RecordTokens(const std::vector<Token>& tokens, std::uint64_t width);
  // Computes both products and the softmax over all chunks.
  void Run(const std::vector<Query>& queries, const std::vector<Chunk*>& chunks,
           std::uint64_t tokens, const Layers& layers, float scale);

  Products* products_;
  std::map<Place, Chunk> resident_;
  std::map<std::uint64_t, std::deque<Chunk>> spare_;  // by width; reused by every call
  std::uint64_t written_ = 0;
};

}  // namespace accelerator

#endif  // MLC_RVV_ACCELERATORS_RUNTIME_ATTENTION_H_
