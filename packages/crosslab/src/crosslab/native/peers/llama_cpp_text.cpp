// SPDX-License-Identifier: Apache-2.0
// Lets llama.cpp read a text, and prints the log-probability of each token given earlier tokens.
//
// Usage: llama_cpp_text MODEL.gguf TEXT WINDOW COUNT
//
// The text is read in at most COUNT separate windows of WINDOW tokens, each after the first tokens
// that the model's file requires (BOS). All other settings are llama.cpp's defaults: flash
// attention, a float16 KV cache, repacked weights. Prints JSON:
//   bytes              bytes of the model's tensors, without copies that llama.cpp repacks
//   first              tokens before each window
//   tokens             tokens of the text
//   log_probabilities  of each token of each window, without the first token of a window's input
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "llama_cpp.h"

namespace {

std::vector<llama_token> Tokenize(const llama_vocab* vocab, const std::string& text, bool first) {
  // A token has at least one byte; the model may add a few.
  std::vector<llama_token> tokens(text.size() + 16);
  const int count = llama_tokenize(vocab, text.data(), static_cast<int32_t>(text.size()),
                                   tokens.data(), static_cast<int32_t>(tokens.size()), first,
                                   /*parse_special=*/true);
  if (count < 0) Fail("the text cannot be tokenized");
  tokens.resize(static_cast<size_t>(count));
  return tokens;
}

// Returns the tokens that the model's file requires before a text.
std::vector<llama_token> FirstTokens(const llama_vocab* vocab, const std::string& text,
                                     const std::vector<llama_token>& plain) {
  std::vector<llama_token> whole = Tokenize(vocab, text, true);
  if (whole.size() < plain.size() || !std::equal(plain.rbegin(), plain.rend(), whole.rbegin())) {
    Fail("the model adds tokens behind a text");
  }
  whole.resize(whole.size() - plain.size());
  return whole;
}

double LogProbability(const float* logits, int vocab, llama_token token) {
  const double highest = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (int i = 0; i < vocab; ++i) sum += std::exp(logits[i] - highest);
  return logits[token] - highest - std::log(sum);
}

void Read(llama_context* context, int vocab, std::vector<llama_token> tokens,
          std::vector<double>* found) {
  llama_memory_clear(llama_get_memory(context), true);
  const int count = static_cast<int>(tokens.size());
  llama_batch batch = llama_batch_init(count, 0, 1);
  batch.n_tokens = count;
  for (int i = 0; i < count; ++i) {
    batch.token[i] = tokens[i];
    batch.pos[i] = i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  if (llama_decode(context, batch) != 0) Fail("llama_decode failed");
  for (int i = 0; i + 1 < count; ++i) {
    found->push_back(LogProbability(llama_get_logits_ith(context, i), vocab, tokens[i + 1]));
  }
  llama_batch_free(batch);
}

template <typename T>
void Print(const char* name, const std::vector<T>& values, const char* format) {
  std::printf(", \"%s\": [", name);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i) std::printf(", ");
    std::printf(format, values[i]);
  }
  std::printf("]");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) Fail("usage: llama_cpp_text MODEL.gguf TEXT WINDOW COUNT");
  std::ifstream file(argv[2], std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file || text.empty()) Fail(std::string("cannot read ") + argv[2]);
  llama_model* model = LoadModel(argv[1]);
  const llama_vocab* vocab = llama_model_get_vocab(model);
  const std::vector<llama_token> tokens = Tokenize(vocab, text, false);
  const std::vector<llama_token> first = FirstTokens(vocab, text, tokens);

  const size_t window = static_cast<size_t>(std::max(std::atoi(argv[3]), 1));
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = static_cast<uint32_t>(first.size() + window);
  params.n_threads = params.n_threads_batch =
      static_cast<int32_t>(std::max(std::thread::hardware_concurrency(), 1u));
  params.no_perf = true;
  llama_context* context = MakeContext(model, params);
  const size_t count = static_cast<size_t>(std::max(std::atoi(argv[4]), 1));
  const size_t last = std::min(tokens.size(), window * count);
  std::vector<double> found;
  for (size_t start = 0; start < last; start += window) {
    std::vector<llama_token> part = first;
    const size_t end = std::min(start + window, last);
    part.insert(part.end(), tokens.begin() + start, tokens.begin() + end);
    Read(context, llama_vocab_n_tokens(vocab), part, &found);
  }
  std::printf("{\"bytes\": %llu", static_cast<unsigned long long>(llama_model_size(model)));
  Print("first", first, "%d");
  Print("tokens", tokens, "%d");
  Print("log_probabilities", found, "%.9f");
  std::printf("}\n");
  return 0;
}
