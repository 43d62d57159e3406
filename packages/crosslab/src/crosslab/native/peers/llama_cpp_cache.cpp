// SPDX-License-Identifier: Apache-2.0
// Lets llama.cpp read tokens on this machine, and writes its KV cache to a file, which
// llama_cpp.cpp can load.
//
// Usage: llama_cpp_cache MODEL.gguf COUNT CACHE
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "llama_cpp.h"

int main(int argc, char** argv) {
  if (argc != 4) Fail("usage: llama_cpp_cache MODEL.gguf COUNT CACHE");
  const int count = std::atoi(argv[2]);
  llama_model* model = LoadModel(argv[1]);
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(count);
  params.n_threads = params.n_threads_batch =
      static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  llama_context* context = MakeContext(model, params);
  const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  std::vector<llama_token> tokens(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) tokens[static_cast<size_t>(i)] = i % vocab;
  const int step = static_cast<int>(llama_n_batch(context));
  for (int from = 0; from < count; from += step) {
    const int some = std::min(step, count - from);
    if (llama_decode(context, llama_batch_get_one(tokens.data() + from, some))) {
      Fail("llama_decode failed");
    }
  }
  if (!llama_state_seq_save_file(context, argv[3], 0, tokens.data(), tokens.size())) {
    Fail("the cache cannot be written");
  }
  return 0;
}
