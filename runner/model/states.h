// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tvm/runtime/tensor.h>

#include <cstdint>
#include <map>
#include <vector>

namespace rvv_runner {

// The recurrent states of a hybrid model's sequences, beside its KV cache. The states of a sequence
// are a row of a tensor, its slot, which calls change where it lies. States cannot be cut: a sequence
// goes back only to a length at which a copy of them was kept, a checkpoint.
class States {
 public:
  // `slots` rows of `floats` numbers.
  States(int64_t slots, int64_t floats);

  // True if a slot is free, which Add, Fork and Keep take.
  bool has_room() const { return !free_.empty(); }
  // Adds the states of an empty sequence, zeros; removes those of a sequence and its checkpoints.
  void Add(int64_t sequence);
  void Remove(int64_t sequence);
  void Clear();
  // Keeps a checkpoint of a sequence's states after `length` tokens, which are all that it has read.
  void Keep(int64_t sequence, int64_t length);
  // Gives up checkpoints of a sequence at `first` tokens and more.
  void Forget(int64_t sequence, int64_t first);
  // The longest checkpoint of at most `tokens` tokens; 0 without one.
  int64_t Reach(int64_t sequence, int64_t tokens) const;
  // Sets a sequence's states back to those at a checkpoint, or to zeros at length 0. Gives up later
  // checkpoints.
  void GoBack(int64_t sequence, int64_t length);
  // Adds `child` with the states of `parent`: at the checkpoint of `length` tokens, or the newest if
  // there is none of this length.
  void Fork(int64_t parent, int64_t child, int64_t length);

  int64_t slot(int64_t sequence) const { return sequences_.at(sequence).slot; }
  // float32 [slots, floats].
  const tvm::runtime::Tensor& tensor() const { return tensor_; }

 private:
  struct Sequence {
    int64_t slot;
    std::map<int64_t, int64_t> checkpoints;  // slots by length
  };

  int64_t Take();
  float* Row(int64_t slot) const;
  void Copy(int64_t from, int64_t to) const;

  int64_t slots_;
  int64_t floats_;
  tvm::runtime::Tensor tensor_;
  std::vector<int64_t> free_;
  std::map<int64_t, Sequence> sequences_;
};

}  // namespace rvv_runner
