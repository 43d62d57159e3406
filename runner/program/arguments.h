// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/sampling.h"
#include "model/roi.h"

namespace rvv_runner {

struct Arguments {
  bool help = false;
  bool json = false;
  bool raw = false;       // the prompt as it is, not in the model's chat
  std::string library;    // empty: the one that is linked in
  std::string params;     // folder with tensor-cache.json
  std::string logits;     // file to write; empty: none
  std::string tokenizer;  // file; empty: ids in, ids out
  std::optional<std::string> prompt;
  std::string prompt_file;  // "-": standard input; empty: none
  std::vector<int32_t> tokens;
  std::vector<std::vector<int32_t>> beside;  // prompts whose answers are computed in the same batch
  std::vector<int32_t> stop;
  int64_t max_new = 0;        // 0: what fits, up to a bound
  int64_t prefill_chunk = 0;  // 0: as the library says
  int64_t max_seq = 0;        // 0: as the library says, bounded by what is needed
  int64_t check_vlen = 0;     // bits; 0: as the library says
  int64_t vocab = 0;          // 0: from the embedding's shape
  Region region;
  bool chat = false;   // talk, turn by turn
  std::string system;  // the chat's system message; empty: none
  bool slide = false;  // a full context loses its oldest turns
  // What the options say of sampling, to be done to what holds without them.
  std::vector<std::function<void(Sampling*)>> sampling;
};

extern const char kUsage[];

// Throws InputError for an unknown option, a missing or malformed value, or a missing option.
Arguments ParseArguments(const std::vector<std::string>& words);

// The same of a program that gets its prompts in another way.
Arguments ParseModelArguments(const std::vector<std::string>& words);

// A whole number; throws InputError that names the option.
int64_t ParseInteger(const std::string& option, const std::string& text, int64_t low, int64_t high);

}  // namespace rvv_runner
