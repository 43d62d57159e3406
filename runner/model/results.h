// SPDX-License-Identifier: Apache-2.0
// Tensors that go into a library's functions and come out of them.
#pragma once

#include <tvm/ffi/any.h>
#include <tvm/runtime/tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rvv_runner {

inline constexpr DLDevice kCpu{kDLCPU, 0};

tvm::runtime::Tensor TensorOf(const std::vector<int32_t>& numbers);

// Reshapes embeddings [n, hidden] or [1, n, hidden] to [batch, n / batch, hidden]. Throws RunError for
// other shapes.
tvm::runtime::Tensor Batched(const tvm::runtime::Tensor& embedded, int64_t batch, int64_t count);

// The first element of a tensor.
template <typename T>
T* FirstOf(const tvm::runtime::Tensor& tensor) {
  return reinterpret_cast<T*>(static_cast<char*>(tensor->data) + tensor->byte_offset);
}

// The rows of logits, one for each of `count` sequences. Throws RunError if they are not float32, or
// not finite.
std::vector<std::vector<float>> LogitsOf(const tvm::ffi::Any& result, size_t count);

// Elements of a tensor of float32 or float16. Throws RunError, which names `what`, for other types.
std::vector<float> FloatsOf(const tvm::runtime::Tensor& tensor, const char* what);

// The sums of rows of states [..., hidden], of as many rows as each length says, but of the first
// `most` alone. Throws RunError if they are not of each token, or not finite.
std::vector<std::vector<double>> SumsOfRows(const tvm::runtime::Tensor& states,
                                            const std::vector<int64_t>& lengths,
                                            int64_t most = INT64_MAX);

}  // namespace rvv_runner
