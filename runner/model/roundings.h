// SPDX-License-Identifier: Apache-2.0
// A record of the values that a run rounds to int8. A reference that checks the answer takes them:
// float32 sums in another order let a value near the middle between two whole numbers fall to the
// other one, and later values with it.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "input/output_file.h"

namespace rvv_runner {

// Rows of a matrix in int8: values [rows, columns], scales [rows, columns / block rounded up].
struct RoundedRows {
  uint64_t rows;
  uint64_t columns;
  uint64_t block;
  uint64_t order;  // grows with the row among the rows of a matrix that threads share
  const float* scales;
  const int8_t* values;
};

// Keys and values of tokens in a cache, [layers, tokens, heads, width] each.
struct CachedTokens {
  uint32_t layers;
  uint32_t tokens;
  uint32_t heads;
  uint32_t width;
  const float* keys;
  const float* values;
};

// The file, which every kernel and device of this process writes to. An entry is a header of four
// 32-bit numbers and one of 64 bits, little-endian, and data:
//   kRows, rows, columns, block, order: scales float32, values int8. Rows of one matrix that threads
//     share come in any order.
//   kTokens, layers, tokens, heads, width: keys, then values, float32.
//   kCall, and zeros: the end of a call of the model.
class RoundingRecord {
 public:
  // Throws InputError if the file cannot be written.
  explicit RoundingRecord(const std::string& path);
  ~RoundingRecord();
  RoundingRecord(const RoundingRecord&) = delete;
  RoundingRecord& operator=(const RoundingRecord&) = delete;

  // The record of this process; null if none is open.
  static RoundingRecord* Open();

  void AddRows(const RoundedRows& rows);
  void AddTokens(const CachedTokens& tokens);
  // Ends the entries of a call of the model.
  void EndCall();
  // Throws RunError if not everything was written.
  void Close() { file_.Close(); }

 private:
  enum Kind : uint32_t { kRows, kTokens, kCall };

  void Begin(Kind kind, uint32_t first, uint32_t second, uint32_t third, uint64_t last);

  OutputFile file_;
  std::mutex mutex_;
};

}  // namespace rvv_runner

extern "C" {
// For devices that are linked in: 0 if no record is open; add rows, with a scale for each, if one is.
int mlc_rvv_records_roundings();
void mlc_rvv_record_rows(const int8_t* values, const float* scales, uint64_t rows,
                         uint64_t columns);
}
