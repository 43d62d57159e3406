// SPDX-License-Identifier: Apache-2.0
// Runs each matrix product and operation of llama.cpp alone, between the marks of the instruction
// counter.
//
// Region i is the kernel in line i of the output: its name, and the multiply-adds (products and
// attention) or elements (other operations) between the marks. The kernels have no branches that
// depend on weights, so that blocks of zeros cost as much as others.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "ggml-cpu.h"
#include "ggml.h"

namespace {

inline void Begin() { asm volatile(".word 0x7c102013" ::: "memory"); }
inline void End() { asm volatile(".word 0x7c202013" ::: "memory"); }

constexpr int kLength = 2048;  // elements of a row
constexpr int kRows = 32;      // rows of weights
constexpr int kBatch = 4;      // tokens of a tile
// No format has more bytes an element than float32.
constexpr size_t kBytes = size_t{kLength} * kRows * sizeof(float);

using Tile = void(int n, float* s, size_t bs, const void* x, const void* y, int rows, int columns);
using Dot = void(int n, float* s, size_t bs, const void* x, size_t bx, const void* y, size_t by,
                 int rows);
using Quantize = void(const float* x, void* y, int64_t n);

struct Buffers {
  std::vector<uint8_t> weights = std::vector<uint8_t>(kBytes);
  std::vector<uint8_t> activations = std::vector<uint8_t>(kBytes);
  std::vector<float> numbers = std::vector<float>(size_t{kLength} * kBatch);
  std::vector<float> results = std::vector<float>(size_t{kRows} * kBatch);
};

void Report(const char* name, int work) { std::printf("%s,%d\n", name, work); }

void RunTile(Buffers& b, const char* name, Tile* kernel, int tokens) {
  Begin();
  kernel(kLength, b.results.data(), kRows, b.weights.data(), b.activations.data(), tokens, kRows);
  End();
  Report(name, kLength * kRows * tokens);
}

void RunDot(Buffers& b, const char* name, Dot* kernel, int length = kLength) {
  Begin();
  for (int row = 0; row < kRows; ++row) {
    kernel(length, &b.results[row], 0, b.weights.data(), 0, b.activations.data(), 0, 1);
  }
  End();
  Report(name, length * kRows);
}

void RunQuantize(Buffers& b, const char* name, Quantize* kernel, int tokens) {
  Begin();
  kernel(b.numbers.data(), b.activations.data(), int64_t{kLength});
  End();
  Report(name, kLength * tokens);
}

// A graph of one operation, which one thread computes.
class Operation {
 public:
  Operation() : context_(ggml_init({size_t{64} << 20, nullptr, false})) {}
  ~Operation() { ggml_free(context_); }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  ggml_context* context() { return context_; }

  // A tensor of zeros, of a number of elements in each dimension.
  ggml_tensor* Zeros(ggml_type type, int64_t n0, int64_t n1, int64_t n2 = 1) {
    ggml_tensor* tensor = ggml_new_tensor_3d(context_, type, n0, n1, n2);
    std::memset(tensor->data, 0, ggml_nbytes(tensor));
    return tensor;
  }

  void Run(const char* name, ggml_tensor* result, int work) {
    ggml_cgraph* graph = ggml_new_graph(context_);
    ggml_build_forward_expand(graph, result);
    Begin();
    ggml_graph_compute_with_ctx(context_, graph, 1);
    End();
    Report(name, work);
  }

 private:
  ggml_context* context_;
};

constexpr int kTokens = 16;
constexpr int kHead = 64;  // elements of a head
constexpr int kHeads = 4;
constexpr int kCache = 256;  // tokens in the cache of keys and values

// Operations on each element of the activations.
void RunElementwise() {
  constexpr int kWork = kLength * kTokens;
  {
    Operation op;
    ggml_tensor* x = op.Zeros(GGML_TYPE_F32, kLength, kTokens);
    ggml_tensor* norm = ggml_rms_norm(op.context(), x, 1e-5F);
    op.Run("rms_norm", ggml_mul(op.context(), norm, op.Zeros(GGML_TYPE_F32, kLength, 1)), kWork);
  }
  {
    Operation op;
    ggml_tensor* x = op.Zeros(GGML_TYPE_F32, kLength, kTokens);
    op.Run("add", ggml_add(op.context(), x, op.Zeros(GGML_TYPE_F32, kLength, kTokens)), kWork);
  }
  {
    Operation op;
    ggml_tensor* x = op.Zeros(GGML_TYPE_F32, kLength, kTokens);
    ggml_tensor* gate = op.Zeros(GGML_TYPE_F32, kLength, kTokens);
    op.Run("swiglu", ggml_swiglu_split(op.context(), gate, x), kWork);
  }
  {
    Operation op;
    ggml_tensor* x = op.Zeros(GGML_TYPE_F32, kHead, kLength / kHead, kTokens);
    ggml_tensor* at = ggml_new_tensor_1d(op.context(), GGML_TYPE_I32, kTokens);
    for (int i = 0; i < kTokens; ++i) static_cast<int32_t*>(at->data)[i] = i;
    op.Run("rope", ggml_rope(op.context(), x, at, kHead, 0), kWork);
  }
}

// A product of halves, as a graph computes it: llamafile's tiles.
void RunProduct(const char* name, int length, int rows) {
  Operation op;
  ggml_tensor* weights = op.Zeros(GGML_TYPE_F16, length, rows);
  ggml_tensor* x = op.Zeros(GGML_TYPE_F32, length, kTokens);
  op.Run(name, ggml_mul_mat(op.context(), weights, x), length * rows * kTokens);
}

// The softmax of the scores of some tokens with the whole cache.
void RunSoftmax() {
  Operation op;
  ggml_tensor* scores = op.Zeros(GGML_TYPE_F32, kCache, kTokens, kHeads);
  ggml_tensor* mask = op.Zeros(GGML_TYPE_F16, kCache, kTokens);
  ggml_tensor* result =
      ggml_soft_max_ext(op.context(), scores, mask, 1.0F / std::sqrt(float{kHead}), 0);
  op.Run("softmax", result, kCache * kTokens * kHeads);
}

// Flash attention of some tokens to the whole cache, which the mask may hide: tiles skip hidden keys
// after they have read the mask.
void RunAttention(const char* name, int tokens, bool hidden = false) {
  Operation op;
  ggml_tensor* q = op.Zeros(GGML_TYPE_F32, kHead, tokens, kHeads);
  ggml_tensor* k = op.Zeros(GGML_TYPE_F16, kHead, kCache, 1);
  ggml_tensor* v = op.Zeros(GGML_TYPE_F16, kHead, kCache, 1);
  ggml_tensor* mask = op.Zeros(GGML_TYPE_F16, kCache, tokens);
  const ggml_fp16_t none = ggml_fp32_to_fp16(hidden ? -INFINITY : 0.0F);
  for (int i = 0; i < kCache * tokens; ++i) static_cast<ggml_fp16_t*>(mask->data)[i] = none;
  ggml_tensor* result =
      ggml_flash_attn_ext(op.context(), q, k, v, mask, 1.0F / std::sqrt(float{kHead}), 0, 0);
  op.Run(name, result, (hidden ? 1 : 2 * kHead) * kCache * kHeads * tokens);
}

}  // namespace

extern "C" {
// Type of the weights, and the rest of the function's name.
#define MLC_RVV_TILES(kernel)                                                           \
  kernel(q4_0, _16x1_q8_0) kernel(q8_0, _16x1_q8_0) kernel(q4_K, _16x1_q8_K)            \
      kernel(q2_K, _16x1_q8_K) kernel(iq4_nl, _16x1_q8_0)
#define MLC_RVV_DOTS(kernel)                                                            \
  kernel(q4_0, _q8_0) kernel(q4_1, _q8_1) kernel(q5_0, _q8_0) kernel(q5_1, _q8_1)       \
      kernel(q8_0, _q8_0) kernel(q2_K, _q8_K) kernel(q3_K, _q8_K) kernel(q4_K, _q8_K)   \
          kernel(q5_K, _q8_K) kernel(q6_K, _q8_K) kernel(iq4_nl, _q8_0) kernel(f16, )

#define DECLARE(kind, rest) Tile ggml_gemm_##kind##rest, ggml_gemv_##kind##rest;
MLC_RVV_TILES(DECLARE)
#undef DECLARE
#define DECLARE(kind, rest) Dot ggml_vec_dot_##kind##rest;
MLC_RVV_DOTS(DECLARE)
#undef DECLARE
Quantize ggml_quantize_mat_q8_0_4x1, ggml_quantize_mat_q8_K_4x1;
Quantize quantize_row_q8_0, quantize_row_q8_K;
}

int main() {
  ggml_cpu_init();
  Buffers b;
  for (size_t i = 0; i < b.numbers.size(); ++i) b.numbers[i] = std::sin(static_cast<float>(i));
#define RUN(kind, rest)                                                                 \
  RunTile(b, "gemm " #kind, ggml_gemm_##kind##rest, kBatch);                            \
  RunTile(b, "gemv " #kind, ggml_gemv_##kind##rest, 1);
  MLC_RVV_TILES(RUN)
#undef RUN
#define RUN(kind, rest) RunDot(b, "dot " #kind, ggml_vec_dot_##kind##rest);
  MLC_RVV_DOTS(RUN)
#undef RUN
  RunDot(b, "dot f16 64", ggml_vec_dot_f16, kHead);
  RunQuantize(b, "quantize_mat q8_0", ggml_quantize_mat_q8_0_4x1, kBatch);
  RunQuantize(b, "quantize_mat q8_K", ggml_quantize_mat_q8_K_4x1, kBatch);
  RunQuantize(b, "quantize_row q8_0", quantize_row_q8_0, 1);
  RunQuantize(b, "quantize_row q8_K", quantize_row_q8_K, 1);
  RunElementwise();
  RunProduct("mul_mat f16", kLength, kRows);
  RunProduct("mul_mat f16 64", kHead, kCache);
  RunSoftmax();
  RunAttention("attention_tile", 64);
  RunAttention("attention_tile hidden", 64, true);
  RunAttention("attention", 1);
  return 0;
}
