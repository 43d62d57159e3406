// SPDX-License-Identifier: Apache-2.0
#include "model/states.h"

#include <tvm/ffi/container/shape.h>

#include <algorithm>

#include "input/errors.h"

namespace rvv_runner {

using tvm::runtime::Tensor;

States::States(int64_t slots, int64_t floats)
    : slots_(slots),
      floats_(floats),
      tensor_(Tensor::Empty(tvm::ffi::Shape({slots, floats}), DLDataType{kDLFloat, 32, 1},
                            DLDevice{kDLCPU, 0})) {
  Clear();
}

void States::Clear() {
  sequences_.clear();
  free_.clear();
  for (int64_t slot = slots_; slot-- > 0;) free_.push_back(slot);
}

int64_t States::Take() {
  if (free_.empty()) throw RunError("there is no room for the states of another sequence");
  const int64_t slot = free_.back();
  free_.pop_back();
  return slot;
}

float* States::Row(int64_t slot) const {
  return static_cast<float*>(tensor_->data) + slot * floats_;
}

void States::Copy(int64_t from, int64_t to) const { std::copy_n(Row(from), floats_, Row(to)); }

void States::Add(int64_t sequence) {
  const int64_t slot = Take();
  std::fill_n(Row(slot), floats_, 0.0f);
  sequences_[sequence] = {slot, {}};
}

void States::Remove(int64_t sequence) {
  Forget(sequence, 0);
  free_.push_back(slot(sequence));
  sequences_.erase(sequence);
}

void States::Keep(int64_t sequence, int64_t length) {
  auto& of = sequences_.at(sequence);
  if (of.checkpoints.contains(length)) return;
  const int64_t slot = Take();
  Copy(of.slot, slot);
  of.checkpoints[length] = slot;
}

void States::Forget(int64_t sequence, int64_t first) {
  auto& checkpoints = sequences_.at(sequence).checkpoints;
  for (auto it = checkpoints.lower_bound(first); it != checkpoints.end();) {
    free_.push_back(it->second);
    it = checkpoints.erase(it);
  }
}

int64_t States::Reach(int64_t sequence, int64_t tokens) const {
  const auto& checkpoints = sequences_.at(sequence).checkpoints;
  const auto above = checkpoints.upper_bound(tokens);
  return above == checkpoints.begin() ? 0 : std::prev(above)->first;
}

void States::GoBack(int64_t sequence, int64_t length) {
  auto& of = sequences_.at(sequence);
  if (length == 0) {
    std::fill_n(Row(of.slot), floats_, 0.0f);
  } else {
    const auto found = of.checkpoints.find(length);
    if (found == of.checkpoints.end()) throw RunError("a recurrent state cannot be cut");
    Copy(found->second, of.slot);
  }
  Forget(sequence, length + 1);
}

void States::Fork(int64_t parent, int64_t child, int64_t length) {
  const int64_t slot = Take();
  const auto& of = sequences_.at(parent);
  const auto found = of.checkpoints.find(length);
  Copy(found == of.checkpoints.end() ? of.slot : found->second, slot);
  sequences_[child] = {slot, {}};
}

}  // namespace rvv_runner
