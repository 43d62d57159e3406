// SPDX-License-Identifier: Apache-2.0
// What the host rounded to int8, in its order, for a reference that takes the same roundings:
// without them float32 sums in another order let activations fall to other whole numbers.
#ifndef MLC_RVV_ACCELERATORS_RUNTIME_RECORD_H_
#define MLC_RVV_ACCELERATORS_RUNTIME_RECORD_H_

#include <cstdint>
#include <fstream>

namespace accelerator {

class Record {
 public:
  // Writes to the file that MLC_RVV_ACCELERATOR_RECORD names; nothing where it names none.
  // Throws DeviceError where the file cannot be written.
  Record();

  bool wanted() const { return out_.is_open(); }

  // Appends a matrix: rows and columns (32 bits each), the rows' scales (float32), its values.
  // Throws DeviceError where the file takes no more.
  void Append(const std::int8_t* values, const float* scales, std::uint64_t rows,
              std::uint64_t columns);

 private:
  std::ofstream out_;
};

}  // namespace accelerator

#endif  // MLC_RVV_ACCELERATORS_RUNTIME_RECORD_H_
