// SPDX-License-Identifier: Apache-2.0
// Samples an answer from rows of logits. Arguments: a file of float32 [rows, vocabulary], the
// vocabulary, a number of seeds (0, 1, ...), options of sampling. A line of tokens for each seed.
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "engine/sampling.h"
#include "input/errors.h"
#include "input/read_file.h"
#include "program/arguments.h"

int main(int argc, char** argv) {
  using namespace rvv_runner;
  std::vector<std::string> words{"--params", "-", "--tokenizer", "-", "--tokens", "0"};
  words.insert(words.end(), argv + 4, argv + argc);
  try {
    const std::string bytes = ReadFile(argv[1]);
    std::vector<float> logits(bytes.size() / sizeof(float));
    std::memcpy(logits.data(), bytes.data(), logits.size() * sizeof(float));
    const auto width = static_cast<size_t>(std::stoul(argv[2]));
    Sampling sampling;
    for (const auto& change : ParseArguments(words).sampling) change(&sampling);
    CheckSampling(sampling, static_cast<int64_t>(width));
    for (uint64_t seed = 0; seed < std::stoul(argv[3]); ++seed) {
      sampling.seed = seed;
      Sampler sampler(sampling);
      for (size_t at = 0; at < logits.size(); at += width) {
        std::cout << sampler.Next(std::span(logits).subspan(at, width)) << " ";
      }
      std::cout << "\n";
    }
  } catch (const InputError& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
  return 0;
}
