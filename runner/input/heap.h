// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace rvv_runner {

// Makes the C library give freed memory back to the system. Its defaults keep what a thread freed
// for the same thread, so that a server with many threads holds its largest requests for ever. Call
// it before other threads start. It does nothing with another C library than GNU's.
void ReturnFreedMemory();

// Gives freed memory back to the system when it is destroyed.
class TrimmedHeap {
 public:
  explicit TrimmedHeap(bool wanted) : wanted_(wanted) {}
  ~TrimmedHeap();
  TrimmedHeap(const TrimmedHeap&) = delete;
  TrimmedHeap& operator=(const TrimmedHeap&) = delete;

 private:
  bool wanted_;
};

}  // namespace rvv_runner
