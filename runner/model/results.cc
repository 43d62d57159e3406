// SPDX-License-Identifier: Apache-2.0
#include "model/results.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "input/errors.h"

namespace rvv_runner {
namespace {

namespace ffi = tvm::ffi;
using tvm::runtime::Tensor;

// The value of a finite float16.
float FromHalf(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float part = static_cast<float>(fraction);
  const float magnitude = exponent == 31  ? std::numeric_limits<float>::infinity()
                          : exponent == 0 ? std::ldexp(part, -24)
                                          : std::ldexp(1024.0f + part, exponent - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

}  // namespace

Tensor TensorOf(const std::vector<int32_t>& numbers) {
  Tensor tensor = Tensor::Empty(ffi::Shape({std::ssize(numbers)}), DLDataType{kDLInt, 32, 1}, kCpu);
  std::memcpy(tensor->data, numbers.data(), numbers.size() * sizeof(int32_t));
  return tensor;
}

Tensor Batched(const Tensor& embedded, int64_t batch, int64_t count) {
  const int64_t hidden = embedded->ndim > 0 ? embedded->shape[embedded->ndim - 1] : 0;
  const bool flat = embedded->ndim == 2 && embedded->shape[0] == count;
  const bool one = embedded->ndim == 3 && embedded->shape[0] == 1 && embedded->shape[1] == count;
  if (!flat && !one)
    throw RunError("the library's embed function does not return [tokens, hidden]");
  return embedded.CreateView(ffi::Shape({batch, count / batch, hidden}), embedded->dtype);
}

std::vector<std::vector<float>> LogitsOf(const ffi::Any& result, size_t count) {
  const auto logits = result.cast<ffi::Array<ffi::Any>>()[0].cast<Tensor>();
  if (logits->dtype.code != kDLFloat || logits->dtype.bits != 32 || logits->ndim < 1) {
    throw RunError("the library's logits are not float32");
  }
  const int64_t width = logits->shape[logits->ndim - 1];
  const auto rows = static_cast<int64_t>(count);
  if (logits.numel() != rows * width) {
    throw RunError("the library's logits do not have one row for each sequence");
  }
  const auto* first = FirstOf<const float>(logits);
  std::vector<std::vector<float>> all;
  for (int64_t i = 0; i < rows; ++i, first += width) {
    const auto& row = all.emplace_back(first, first + width);
    if (std::any_of(row.begin(), row.end(), [](float v) { return !std::isfinite(v); })) {
      throw RunError("the model's logits hold NaN or infinity");
    }
  }
  return all;
}

std::vector<float> FloatsOf(const Tensor& tensor, const char* what) {
  const bool halves = tensor->dtype.bits == 16;
  if (tensor->dtype.code != kDLFloat || (!halves && tensor->dtype.bits != 32)) {
    throw RunError(std::string(what) + " are neither float32 nor float16");
  }
  const int64_t count = tensor.numel();
  std::vector<float> values(static_cast<size_t>(count));
  if (halves) {
    std::transform(FirstOf<const uint16_t>(tensor), FirstOf<const uint16_t>(tensor) + count,
                   values.begin(), FromHalf);
  } else {
    std::copy_n(FirstOf<const float>(tensor), count, values.begin());
  }
  return values;
}

std::vector<std::vector<double>> SumsOfRows(const Tensor& states,
                                            const std::vector<int64_t>& lengths, int64_t most) {
  const std::vector<float> values = FloatsOf(states, "the library's states");
  const auto width = static_cast<size_t>(states->ndim > 0 ? states->shape[states->ndim - 1] : 0);
  const auto rows = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  if (width == 0 || values.size() != static_cast<size_t>(rows) * width) {
    throw RunError("the library's states are not of each token");
  }
  std::vector<std::vector<double>> sums;
  auto value = values.begin();
  for (const int64_t length : lengths) {
    std::vector<double>& sum = sums.emplace_back(width);
    const size_t end = static_cast<size_t>(length) * width;
    const size_t last = length <= most ? end : static_cast<size_t>(most) * width;
    for (size_t i = 0; i < end; ++i, ++value) {
      if (!std::isfinite(*value)) throw RunError("the model's states hold NaN or infinity");
      if (i < last) sum[i % width] += *value;
    }
  }
  return sums;
}

}  // namespace rvv_runner
