// SPDX-License-Identifier: Apache-2.0
// Runs llama.cpp between the marks of the instruction counter.
//
// Usage: llama_cpp MODEL.gguf TOKEN,TOKEN,... STEPS [DEPTH CACHE]
//
// The DEPTH tokens of the file CACHE (llama_cpp_cache.cpp) precede the prompt.
// Regions, in order:
//   0  the prompt through every layer for every token, up to the final norm
//   1  lm_head after region 0, a row for each token
//   2  the prompt as shipped: the last layer drops all tokens except the last
//   3  lm_head after region 2, one row
//   4… a region for each further token
// Prints the greedily chosen tokens as JSON. All other settings are llama.cpp's defaults: flash
// attention, a float16 KV cache.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "llama_cpp.h"

namespace {

inline void Begin() { asm volatile(".word 0x7c102013" ::: "memory"); }
inline void End() { asm volatile(".word 0x7c202013" ::: "memory"); }

bool split_at_norm = false;

// Called for each node of the graph; the node result_norm is the input of lm_head.
bool OnNode(ggml_tensor* node, bool ask, void*) {
  if (!split_at_norm || std::strcmp(node->name, "result_norm") != 0) return !ask;
  if (!ask) {
    End();
    Begin();
  }
  return true;
}

std::vector<llama_token> ParseTokens(const char* text) {
  std::vector<llama_token> tokens;
  for (const char* at = text; *at;) {
    char* end = nullptr;
    tokens.push_back(static_cast<llama_token>(std::strtol(at, &end, 10)));
    at = *end == ',' ? end + 1 : end;
    if (end == text) Fail("tokens are numbers with commas between them");
  }
  return tokens;
}

// Decodes tokens from a position on, between the marks; computes logits of all or the last token.
void Decode(llama_context* context, const std::vector<llama_token>& tokens, int from, bool all) {
  llama_batch batch = llama_batch_init(static_cast<int>(tokens.size()), 0, 1);
  batch.n_tokens = static_cast<int>(tokens.size());
  for (int i = 0; i < batch.n_tokens; ++i) {
    batch.token[i] = tokens[i];
    batch.pos[i] = from + i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = all || i + 1 == batch.n_tokens;
  }
  Begin();
  const int failed = llama_decode(context, batch);
  End();
  if (failed) Fail("llama_decode failed");
  llama_batch_free(batch);
}

// Loads the keys and values of `depth` tokens from a file.
void LoadCache(llama_context* context, const char* path, size_t depth) {
  std::vector<llama_token> tokens(depth);
  size_t count = 0;
  if (!llama_state_seq_load_file(context, path, 0, tokens.data(), depth, &count) ||
      count != depth) {
    Fail("the file of the cache cannot be read, or has another number of tokens");
  }
}

llama_token Greedy(llama_context* context, int vocab) {
  const float* logits = llama_get_logits_ith(context, -1);
  int best = 0;
  for (int i = 1; i < vocab; ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 && argc != 6) Fail("usage: llama_cpp MODEL.gguf TOKENS STEPS [DEPTH CACHE]");
  const std::vector<llama_token> prompt = ParseTokens(argv[2]);
  const int steps = std::atoi(argv[3]);
  const int depth = argc > 4 ? std::atoi(argv[4]) : 0;
  const int start = depth + static_cast<int>(prompt.size());
  llama_model* model = LoadModel(argv[1]);
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(start + steps + 8);
  params.n_batch = params.n_ubatch = static_cast<uint32_t>(prompt.size());
  params.n_threads = params.n_threads_batch = 1;
  params.no_perf = true;
  params.cb_eval = OnNode;
  llama_context* context = MakeContext(model, params);
  const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));

  if (depth > 0) LoadCache(context, argv[5], static_cast<size_t>(depth));
  split_at_norm = true;
  Decode(context, prompt, depth, true);
  llama_memory_seq_rm(llama_get_memory(context), 0, depth, -1);
  Decode(context, prompt, depth, false);
  split_at_norm = false;
  std::string text = "[";
  llama_token token = Greedy(context, vocab);
  text += std::to_string(token);
  for (int i = 0; i < steps - 1; ++i) {
    Decode(context, {token}, start + i, true);
    token = Greedy(context, vocab);
    text += ", " + std::to_string(token);
  }
  std::printf("{\"tokens\": %s]}\n", text.c_str());
  return 0;
}
