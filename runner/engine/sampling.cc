// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "input/errors.h"
#include "input/utf8.h"

namespace rvv_runner {
namespace {

constexpr int64_t kMostTopLogprobs = 20;
constexpr double kMostPenalty = 2.0;
constexpr double kMostBias = 100.0;

std::string NameOf(std::string field, SamplingNames names) {
  if (names == SamplingNames::kFields) return field;
  if (field == "stop") return "--stop-text";  // --stop takes tokens
  std::replace(field.begin(), field.end(), '_', '-');
  return "--" + field;
}

// Also refuses NaN.
void CheckRange(const std::string& name, double value, double low, double high) {
  if (value >= low && value <= high) return;
  const auto text = [](double number) {
    std::string digits = std::to_string(number);
    digits.erase(digits.find_last_not_of('0') + 1);
    return digits.ends_with('.') ? digits.substr(0, digits.size() - 1) : digits;
  };
  throw InputError(name + ": " + text(value) + " is outside " + text(low) + " to " + text(high));
}

void CheckStops(const std::string& name, const std::vector<std::string>& stops) {
  if (stops.size() > kMostStops) {
    throw InputError(name + ": has " + std::to_string(stops.size()) + " strings; send at most " +
                     std::to_string(kMostStops));
  }
  for (const std::string& stop : stops) {
    if (stop.empty()) throw InputError(name + ": a string is empty");
    if (stop.size() > kMostStopBytes) {
      throw InputError(name + ": has " + std::to_string(stop.size()) +
                       " bytes in a string; send at most " + std::to_string(kMostStopBytes));
    }
    if (FirstBroken(stop)) throw InputError(name + ": a string is not UTF-8");
  }
}

// A token that may be drawn.
struct Candidate {
  double weight;  // its probability, but for a common factor
  int32_t token;

  // A heap's top is its largest: of equal weights the smallest id.
  bool operator<(const Candidate& other) const {
    return weight != other.weight ? weight < other.weight : token > other.token;
  }
};

uint64_t AnySeed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

void CheckSampling(const Sampling& sampling, int64_t vocabulary, SamplingNames names) {
  const auto check = [names](const char* field, double value, double low, double high) {
    CheckRange(NameOf(field, names), value, low, high);
  };
  check("temperature", sampling.temperature, 0.0, 100.0);
  check("top_p", sampling.top_p, 0.0, 1.0);
  if (sampling.top_p == 0.0) {
    throw InputError(NameOf("top_p", names) + ": 0 keeps no token; it must be above 0");
  }
  check("min_p", sampling.min_p, 0.0, 1.0);
  check("top_k", static_cast<double>(sampling.top_k), 0.0, 1e9);
  check("repetition_penalty", sampling.repetition_penalty, 0.0, 100.0);
  if (sampling.repetition_penalty == 0.0) {
    throw InputError(NameOf("repetition_penalty", names) +
                     ": it must be above 0; 1 changes nothing");
  }
  check("presence_penalty", sampling.presence_penalty, -kMostPenalty, kMostPenalty);
  check("frequency_penalty", sampling.frequency_penalty, -kMostPenalty, kMostPenalty);
  check("max_tokens", static_cast<double>(sampling.max_tokens), 0.0, 0x1p53);
  check("top_logprobs", static_cast<double>(sampling.top_logprobs), -1.0, kMostTopLogprobs);
  for (const auto& [token, bias] : sampling.logit_bias) {
    check("logit_bias", bias, -kMostBias, kMostBias);
    if (token < 0 || token >= vocabulary) {
      throw InputError(NameOf("logit_bias", names) + ": token " + std::to_string(token) +
                       " is outside the vocabulary of " + std::to_string(vocabulary));
    }
  }
  CheckStops(NameOf("stop", names), sampling.stop);
}

TokenLogprob LogprobOf(std::span<const float> logits, int32_t token, int64_t top) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  const double whole = largest + std::log(sum);
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto count = std::min<int64_t>(std::max<int64_t>(top, 0), std::ssize(order));
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  TokenLogprob found{token, logits[token] - whole, {}};
  for (int64_t i = 0; i < count; ++i) {
    found.top.emplace_back(order[i], logits[order[i]] - whole);
  }
  return found;
}

int32_t Likeliest(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double Random::Next() {
  state_ += 0x9E3779B97F4A7C15;
  uint64_t word = state_;
  word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9;
  word = (word ^ word >> 27) * 0x94D049BB133111EB;
  word ^= word >> 31;
  return static_cast<double>(word >> 11) * 0x1p-53;
}

Sampler::Sampler(const Sampling& sampling)
    : sampling_(sampling), random_(sampling.seed ? *sampling.seed : AnySeed()) {}

int32_t Sampler::Next(std::span<const float> logits) {
  const bool changed = !sampling_.logit_bias.empty() || sampling_.repetition_penalty != 1.0 ||
                       sampling_.presence_penalty != 0.0 || sampling_.frequency_penalty != 0.0;
  if (changed) logits = Adjusted(logits);
  const int32_t token = sampling_.temperature == 0.0 ? Likeliest(logits) : Draw(logits);
  if (changed) ++seen_[token];
  return token;
}

const std::vector<float>& Sampler::Adjusted(std::span<const float> logits) {
  adjusted_.assign(logits.begin(), logits.end());
  for (const auto& [token, bias] : sampling_.logit_bias) {
    adjusted_[token] += static_cast<float>(bias);
  }
  const auto repetition = static_cast<float>(sampling_.repetition_penalty);
  for (const auto& [token, times] : seen_) {
    float& logit = adjusted_[token];
    logit = logit > 0.0F ? logit / repetition : logit * repetition;
    logit -= static_cast<float>(sampling_.presence_penalty +
                                sampling_.frequency_penalty * static_cast<double>(times));
  }
  return adjusted_;
}

// Sorts only as many candidates as needed, by popping them from a heap.
int32_t Sampler::Draw(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  std::vector<Candidate> heap;
  heap.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isinf(logits[i])) continue;  // a grammar forbids it
    const double weight = std::exp((logits[i] - largest) / sampling_.temperature);
    heap.push_back({weight, static_cast<int32_t>(i)});
  }
  std::make_heap(heap.begin(), heap.end());
  std::vector<Candidate> sorted;
  const auto at = [&](size_t index) -> const Candidate& {
    while (sorted.size() <= index) {
      std::pop_heap(heap.begin(), heap.end());
      sorted.push_back(heap.back());
      heap.pop_back();
    }
    return sorted[index];
  };
  size_t kept = heap.size();
  double mass = std::accumulate(heap.begin(), heap.end(), 0.0,
                                [](double sum, const Candidate& c) { return sum + c.weight; });
  if (sampling_.top_k > 0) {
    kept = std::min(kept, static_cast<size_t>(sampling_.top_k));
    mass = 0.0;
    for (size_t i = 0; i < kept; ++i) mass += at(i).weight;
  }
  if (sampling_.top_p < 1.0 || sampling_.min_p > 0.0) {
    const double enough = sampling_.top_p < 1.0 ? sampling_.top_p * mass : mass + 1.0;
    size_t count = 0;
    double sum = 0.0;
    // The largest weight is 1, so that min_p is a weight too.
    do sum += at(count++).weight;
    while (count < kept && sum < enough && at(count).weight >= sampling_.min_p);
    kept = count;
    mass = sum;
  }
  const double drawn = random_.Next() * mass;
  double sum = 0.0;
  for (size_t i = 0; i < kept; ++i) {
    sum += at(i).weight;
    if (sum > drawn) return at(i).token;
  }
  return at(kept - 1).token;  // reached only by rounding
}

}  // namespace rvv_runner
