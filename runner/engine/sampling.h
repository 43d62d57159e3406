// SPDX-License-Identifier: Apache-2.0
// Chooses tokens from a model's logits. Tested against numpy (tests/crosslab/engine).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace rvv_runner {

// The sampling options of a request. The steps, in this order:
//   1. logit_bias is added;
//   2. of each token that the answer already holds: repetition_penalty divides a positive logit and
//      multiplies another; presence_penalty, and frequency_penalty once an occurrence, are
//      subtracted (the order of MLC-LLM, which counts the answer's tokens and not the prompt's);
//   3. temperature 0 takes the largest logit, the first of equal ones, and is done;
//   4. logits / temperature become probabilities, sorted from the largest, equal ones by their id;
//   5. top_k keeps so many; top_p keeps the fewest whose sum reaches it; min_p keeps those of at
//      least min_p times the largest. One token is always kept;
//   6. one is drawn: the first whose sum with all before it exceeds u times the sum of the kept,
//      u being the request's next random number.
struct Sampling {
  double temperature = 0.0;              // at least 0
  double top_p = 1.0;                    // above 0, at most 1
  double min_p = 0.0;                    // 0 to 1
  int64_t top_k = 0;                     // 0: all
  double repetition_penalty = 1.0;       // above 0
  double presence_penalty = 0.0;         // -2 to 2
  double frequency_penalty = 0.0;        // -2 to 2
  std::optional<uint64_t> seed;          // nullopt: a random seed for each request
  std::map<int32_t, double> logit_bias;  // token to added value, -100 to 100
  std::vector<std::string> stop;         // UTF-8, none empty; at most kMostStops
  int64_t max_tokens = 0;                // 0: as many as fit the sequence
  int64_t top_logprobs = -1;  // -1: no logprobs; else the number of alternatives, at most 20
};

constexpr size_t kMostStops = 16;
constexpr size_t kMostStopBytes = 1024;

// How a message names a value: top_p, as in requests, or --top-p, as on the command line.
enum class SamplingNames { kFields, kOptions };

// Throws InputError that names the value which is outside of its range.
void CheckSampling(const Sampling& sampling, int64_t vocabulary,
                   SamplingNames names = SamplingNames::kFields);

// A token with its log-probability: of the model's own logits, before steps 1 to 5.
struct TokenLogprob {
  int32_t token = 0;
  double logprob = 0.0;                         // NaN: of the first token of a prompt
  std::vector<std::pair<int32_t, double>> top;  // the likeliest, from the first
};

TokenLogprob LogprobOf(std::span<const float> logits, int32_t token, int64_t top);

// The token with the largest logit; the first of equal ones.
int32_t Likeliest(std::span<const float> logits);

// Random numbers of a request: SplitMix64, whose state starts as the seed; u is the upper 53 bits
// of an output divided by 2^53.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  double Next();

 private:
  uint64_t state_;
};

// Chooses the tokens of one answer.
class Sampler {
 public:
  // `sampling` must have been checked, and outlive the sampler.
  explicit Sampler(const Sampling& sampling);

  // The next token of the answer. Logits [vocabulary]: finite, or minus infinity for a token that
  // must not come; at least one is finite.
  int32_t Next(std::span<const float> logits);

 private:
  const std::vector<float>& Adjusted(std::span<const float> logits);
  int32_t Draw(std::span<const float> logits);

  const Sampling& sampling_;
  Random random_;
  std::map<int32_t, int64_t> seen_;  // tokens of the answer and their counts
  std::vector<float> adjusted_;
};

}  // namespace rvv_runner
