// SPDX-License-Identifier: Apache-2.0
// Runs llama.cpp between the marks of the instruction counter.
//
// Usage: llama_cpp MODEL.gguf TOKEN,TOKEN,... STEPS DEPTH
//
// The cache holds DEPTH tokens before the prompt. Regions, in order:
//   0  the prompt through every layer for every token, up to the final norm
//   1  lm_head of that, a row for each token
//   2  the prompt as shipped, which drops all but the last token in the last layer
//   3  lm_head of that, one row
//   4… one for each further token
// On standard output: the tokens chosen greedily, as JSON. All else is as llama.cpp has it by
// default: flash attention, halves in the KV cache.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "llama.h"

namespace {

inline void Begin() { asm volatile(".word 0x7c102013" ::: "memory"); }
inline void End() { asm volatile(".word 0x7c202013" ::: "memory"); }

constexpr int kStep = 512;  // tokens of a batch before the prompt, at most

bool split_at_norm = false;

// Asked for each node of the graph: the one named result_norm is what lm_head takes.
bool OnNode(ggml_tensor* node, bool ask, void*) {
  if (!split_at_norm || std::strcmp(node->name, "result_norm") != 0) return !ask;
  if (!ask) {
    End();
    Begin();
  }
  return true;
}

void Fail(const char* what) {
  std::fprintf(stderr, "llama_cpp: %s\n", what);
  std::exit(1);
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

enum class Logits { kNone, kLast, kAll };

// A batch of one sequence's tokens from a position on.
llama_batch BatchOf(const std::vector<llama_token>& tokens, int from, llama_seq_id sequence,
                    Logits logits) {
  llama_batch batch = llama_batch_init(static_cast<int>(tokens.size()), 0, 1);
  batch.n_tokens = static_cast<int>(tokens.size());
  for (int i = 0; i < batch.n_tokens; ++i) {
    const bool last = i + 1 == batch.n_tokens;
    batch.token[i] = tokens[i];
    batch.pos[i] = from + i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = sequence;
    batch.logits[i] = logits == Logits::kAll || (logits == Logits::kLast && last);
  }
  return batch;
}

// Decodes tokens from a position on, between the marks; logits of all of them or the last.
void Decode(llama_context* context, const std::vector<llama_token>& tokens, int from, bool all) {
  const llama_batch batch = BatchOf(tokens, from, 0, all ? Logits::kAll : Logits::kLast);
  Begin();
  const int failed = llama_decode(context, batch);
  End();
  if (failed) Fail("llama_decode failed");
  llama_batch_free(batch);
}

// Puts tokens before the prompt into the cache. Each batch is a sequence of its own at first, which
// does not attend to those before it: what a long prompt takes is not needed here.
void Occupy(llama_context* context, int depth, int vocab) {
  llama_memory_t memory = llama_get_memory(context);
  const int step = static_cast<int>(llama_n_batch(context));
  for (int from = 0; from < depth; from += step) {
    std::vector<llama_token> tokens;
    for (int i = from; i < std::min(from + step, depth); ++i) tokens.push_back(i % vocab);
    const llama_batch batch = BatchOf(tokens, from, 1, Logits::kNone);
    if (llama_decode(context, batch)) Fail("llama_decode failed before the prompt");
    llama_batch_free(batch);
    llama_memory_seq_cp(memory, 1, 0, -1, -1);
    llama_memory_seq_rm(memory, 1, -1, -1);
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
  if (argc != 5) Fail("usage: llama_cpp MODEL.gguf TOKENS STEPS DEPTH");
  const std::vector<llama_token> prompt = ParseTokens(argv[2]);
  const int steps = std::atoi(argv[3]);
  const int depth = std::atoi(argv[4]);
  const int start = depth + static_cast<int>(prompt.size());
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (!model) Fail("the model cannot be loaded");
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(start + steps + 8);
  params.n_batch = params.n_ubatch = std::max<uint32_t>(prompt.size(), std::min(depth, kStep));
  if (depth > 0) {
    // Occupy's sequences, in one cache.
    params.n_seq_max = 2;
    params.kv_unified = true;
  }
  params.n_threads = params.n_threads_batch = 1;
  params.no_perf = true;
  params.cb_eval = OnNode;
  llama_context* context = llama_init_from_model(model, params);
  if (!context) Fail("no context");
  const int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));

  Occupy(context, depth, vocab);
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
