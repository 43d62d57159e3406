// SPDX-License-Identifier: Apache-2.0
#include "model/roundings.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

// Set in linked-in kernels, which call it after they rounded (kernels/include/mlc_rvv_linear.h);
// absent without kernels.
extern "C" __attribute__((weak)) void (*mlc_rvv_on_rounding)(const void*, const float*, int64_t,
                                                             int64_t, int64_t, int64_t, int64_t);

namespace rvv_runner {
namespace {

static_assert(std::endian::native == std::endian::little, "records are written little-endian");

RoundingRecord* open_record = nullptr;

void OnRounding(const void* ready, const float* x, int64_t m, int64_t k, int64_t rows,
                int64_t block, int64_t bytes) {
  const int64_t blocks = (k + block - 1) / block;
  std::vector<float> scales;
  std::vector<int8_t> values;
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t i = 0; i < blocks; ++i) {
      const auto* from = static_cast<const int8_t*>(ready) + (i * rows + row) * bytes;
      values.insert(values.end(), from, from + std::min(block, k - i * block));
      std::memcpy(&scales.emplace_back(), from + block, sizeof(float));
    }
  }
  open_record->AddRows({static_cast<uint64_t>(m), static_cast<uint64_t>(k),
                        static_cast<uint64_t>(block), reinterpret_cast<uintptr_t>(x), scales.data(),
                        values.data()});
}

}  // namespace

RoundingRecord::RoundingRecord(const std::string& path) : file_("--roundings", path) {
  open_record = this;
  if (&mlc_rvv_on_rounding != nullptr) mlc_rvv_on_rounding = OnRounding;
}

RoundingRecord::~RoundingRecord() {
  if (&mlc_rvv_on_rounding != nullptr) mlc_rvv_on_rounding = nullptr;
  open_record = nullptr;
}

RoundingRecord* RoundingRecord::Open() { return open_record; }

void RoundingRecord::AddRows(const RoundedRows& rows) {
  const uint64_t blocks = (rows.columns + rows.block - 1) / rows.block;
  const std::lock_guard lock(mutex_);
  Begin(kRows, static_cast<uint32_t>(rows.rows), static_cast<uint32_t>(rows.columns),
        static_cast<uint32_t>(rows.block), rows.order);
  file_.Write(rows.scales, rows.rows * blocks * sizeof(float));
  file_.Write(rows.values, rows.rows * rows.columns);
}

void RoundingRecord::AddTokens(const CachedTokens& tokens) {
  const uint64_t bytes =
      uint64_t{tokens.layers} * tokens.tokens * tokens.heads * tokens.width * sizeof(float);
  const std::lock_guard lock(mutex_);
  Begin(kTokens, tokens.layers, tokens.tokens, tokens.heads, tokens.width);
  file_.Write(tokens.keys, bytes);
  file_.Write(tokens.values, bytes);
}

void RoundingRecord::EndCall() {
  const std::lock_guard lock(mutex_);
  Begin(kCall, 0, 0, 0, 0);
}

void RoundingRecord::Begin(Kind kind, uint32_t first, uint32_t second, uint32_t third,
                           uint64_t last) {
  const uint32_t sizes[] = {kind, first, second, third};
  file_.Write(sizes, sizeof(sizes));
  file_.Write(&last, sizeof(last));
}

}  // namespace rvv_runner

int mlc_rvv_records_roundings() { return rvv_runner::RoundingRecord::Open() != nullptr; }

void mlc_rvv_record_rows(const int8_t* values, const float* scales, uint64_t rows,
                         uint64_t columns) {
  if (auto* record = rvv_runner::RoundingRecord::Open()) {
    record->AddRows({rows, columns, columns, 0, scales, values});
  }
}
