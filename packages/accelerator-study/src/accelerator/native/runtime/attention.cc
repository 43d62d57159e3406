// SPDX-License-Identifier: Apache-2.0
#include "runtime/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace accelerator {
namespace {

using std::uint64_t;

// The lse of a query that sees no token, as in the CPU's kernels.
constexpr float kEmptyLse = -5e4f;
constexpr double kLog2E = 1.4426950408889634;

}  // namespace

void Attention::Attend(const std::vector<Query>& queries, const std::vector<Token>& tokens,
                       uint64_t width, float scale, bool resident) {
  const uint64_t most = products_->image().chunk;
  if (most == 0) throw DeviceError("no program for attention was linked in");
  const Layers layers{&products_->LayerOf(most, width), &products_->LayerOf(width, most)};
  std::vector<Chunk*> chunks;
  for (uint64_t at = 0; at < tokens.size(); at += most) {
    if (resident) {
      const auto chunk = resident_.find({tokens[at].key, width});
      chunks.push_back(chunk != resident_.end() ? &chunk->second
                                                : NewChunk(layers, tokens[at].key));
    } else {
      chunks.push_back(chunks.size() < spare_[width].size() ? &spare_[width][chunks.size()]
                                                            : NewChunk(layers, nullptr));
      chunks.back()->filled = 0;
    }
    Fill(layers, &tokens[at], std::min<uint64_t>(most, tokens.size() - at), chunks.back());
  }
  if (mlc_rvv_records_roundings()) RecordTokens(tokens, width);
  Run(queries, chunks, tokens.size(), layers, scale);
}

void Attention::RecordTokens(const std::vector<Token>& tokens, uint64_t width) {
  std::vector<std::int8_t> rounded(tokens.size() * width);
  std::vector<float> scales(tokens.size());
  for (const float* Token::* part : {&Token::key, &Token::value}) {
    for (uint64_t t = 0; t < tokens.size(); ++t) {
      scales[t] = Quantise(tokens[t].*part, width, &rounded[t * width]);
    }
    mlc_rvv_record_rows(rounded.data(), scales.data(), tokens.size(), width);
  }
}

Attention::Chunk* Attention::NewChunk(const Layers& layers, const float* key) {
  const uint64_t most = layers.keys->outputs, width = layers.keys->inputs;
  Chunk chunk;
  chunk.keys = products_->AllocateWeights(*layers.keys);
  chunk.values = products_->AllocateWeights(*layers.values);
  chunk.key_scales.resize(most);
  chunk.value_scales.resize(most);
  chunk.sources.resize(2 * most * width);
  if (key != nullptr) return &resident_.emplace(Place{key, width}, std::move(chunk)).first->second;
  return &spare_[width].emplace_back(std::move(chunk));
}

void Attention::Fill(const Layers& layers, const Token* tokens, uint64_t count, Chunk* chunk) {
  const uint64_t width = layers.keys->inputs, bytes = width * sizeof(float);
  std::vector<std::int8_t> row(width);
  for (uint64_t token = 0; token < count; ++token) {
    float* key = &chunk->sources[2 * token * width];
    float* value = key + width;
    const bool same = token < chunk->filled && !std::memcmp(key, tokens[token].key, bytes) &&
                      !std::memcmp(value, tokens[token].value, bytes);
    if (same) continue;
    // The chunk's tokens from here on belonged to a former text.
    chunk->filled = token;
    chunk->key_scales[token] = Quantise(tokens[token].key, width, row.data());
    for (uint64_t i = 0; i < width; ++i) {
      products_->SetWeight(*layers.keys, token, i, row[i], &chunk->keys);
    }
    chunk->value_scales[token] = Quantise(tokens[token].value, width, row.data());
    for (uint64_t i = 0; i < width; ++i) {
      products_->SetWeight(*layers.values, i, token, row[i], &chunk->values);
    }
    std::memcpy(key, tokens[token].key, bytes);
    std::memcpy(value, tokens[token].value, bytes);
    chunk->filled = token + 1;
    ++written_;
  }
}

void Attention::Run(const std::vector<Query>& queries, const std::vector<Chunk*>& chunks,
                    uint64_t tokens, const Layers& layers, float scale) {
  const uint64_t rows = queries.size(), most = layers.keys->outputs, width = layers.keys->inputs;
  const uint64_t stride = chunks.size() * most;
  std::vector<std::int8_t> rounded(rows * width);
  std::vector<double> scores(rows * stride);
  std::vector<float> scales(rows);
  for (uint64_t r = 0; r < rows; ++r) {
    scales[r] = Quantise(queries[r].values, width, &rounded[r * width]);
  }
  mlc_rvv_record_rows(rounded.data(), scales.data(), rows, width);
  std::vector<std::int32_t> sums(rows * std::max(most, width));
  for (uint64_t c = 0; c < chunks.size(); ++c) {
    products_->Multiply(*layers.keys, rounded.data(), rows, &chunks[c]->keys, sums.data());
    for (uint64_t r = 0; r < rows; ++r) {
      for (uint64_t t = 0; t < most; ++t) {
        const double sum = sums[r * most + t] * double{scales[r]} * chunks[c]->key_scales[t];
        scores[r * stride + c * most + t] = sum * scale;
      }
    }
  }
  // Probabilities by chunk, the order of the second product; zero for tokens that are not visible.
  std::vector<std::int8_t> weights(chunks.size() * rows * most);
  std::vector<float> row(stride);
  std::vector<std::int8_t> near(stride), seen_weights(rows * tokens);
  for (uint64_t r = 0; r < rows; ++r) {
    const uint64_t seen = std::min(queries[r].visible, tokens);
    double* of_row = &scores[r * stride];
    double total = 0;
    const double largest = seen ? *std::max_element(of_row, of_row + seen) : 0;
    for (uint64_t t = 0; t < seen; ++t) total += of_row[t] = std::exp(of_row[t] - largest);
    for (uint64_t t = 0; t < stride; ++t) {
      const double part =
          t < seen ? of_row[t] / total * chunks[t / most]->value_scales[t % most] : 0;
      row[t] = static_cast<float>(part);
    }
    scales[r] = Quantise(row.data(), stride, near.data());
    for (uint64_t t = 0; t < stride; ++t) {
      weights[(t / most * rows + r) * most + t % most] = near[t];
    }
    std::copy_n(near.begin(), tokens, seen_weights.begin() + r * tokens);
    *queries[r].lse = seen ? static_cast<float>(largest * kLog2E + std::log2(total)) : kEmptyLse;
  }
  mlc_rvv_record_rows(seen_weights.data(), scales.data(), rows, tokens);
  std::vector<std::int64_t> mixed(rows * width);
  for (uint64_t c = 0; c < chunks.size(); ++c) {
    products_->Multiply(*layers.values, &weights[c * rows * most], rows, &chunks[c]->values,
                        sums.data());
    for (uint64_t i = 0; i < rows * width; ++i) mixed[i] += sums[i];
  }
  for (uint64_t r = 0; r < rows; ++r) {
    for (uint64_t i = 0; i < width; ++i) {
      const double sum = static_cast<double>(mixed[r * width + i]);
      queries[r].out[i] = static_cast<float>(sum * scales[r]);
    }
  }
}

}  // namespace accelerator
