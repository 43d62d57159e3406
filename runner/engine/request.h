// SPDX-License-Identifier: Apache-2.0
// A request to the engine, and what its caller gets back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "engine/sampling.h"
#include "grammar/grammar.h"
#include "picture/preparation.h"

namespace rvv_runner {

enum class Finish {
  kStop,       // a stop token or a stop string
  kLength,     // max_tokens, or the sequence is full
  kCancelled,  // by Cancel
  kError,      // see Ended::error; the other requests go on
};

// The new part of an answer. Its text consists of whole UTF-8 characters. Stop strings are never
// shown: a text that may be the beginning of one is held back until the next tokens decide.
struct Piece {
  std::string text;
  std::vector<int32_t> tokens;         // since the last piece, stop tokens and hidden ones too
  std::vector<TokenLogprob> logprobs;  // of these tokens when asked for, without the stop token
  // In the first piece, when asked for: all tokens of the prompt.
  std::vector<TokenLogprob> prompt = {};
};

// The end of an answer.
struct Ended {
  Finish finish = Finish::kStop;
  std::string error;  // of kError
  bool cut = false;   // by a stop string, perhaps within the form of its grammar
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;            // of the prompt, not computed again
  int64_t answer_tokens = 0;            // the stop token too
  std::vector<float> embedding;         // where asked for
  double queue_seconds = 0.0;           // from Submit to the first prefill
  std::vector<double> prefill_seconds;  // of each prefill call
  std::vector<double> decode_seconds;   // of each decode call of this answer
};

inline double SumOf(const std::vector<double>& seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

// The error for a request without `embeds` to an encoder.
inline constexpr char kOnlyVectors[] =
    "this model gives vectors of texts, and answers nothing; ask for them at /v1/embeddings or "
    "/api/embed";

// The error for a picture to a model that reads text alone.
inline constexpr char kOnlyText[] = "this model reads only text";

struct Request {
  std::vector<int32_t> tokens;  // the prompt, at least one
  Sampling sampling;
  std::vector<int32_t> stop;                    // tokens that end the answer
  std::function<void(const Piece&)> on_piece;   // called for each new piece; may be empty
  std::function<void(const Ended&)> on_finish;  // called once, after the last piece; may be empty
  // Called with each row of logits that a token is chosen from; may be empty.
  std::function<void(const std::vector<float>&)> on_logits;
  std::shared_ptr<const Grammar> grammar = nullptr;  // of the answer; null: any text
  // Prompts share the cache of common beginnings only with those of the same owner, so that the time
  // of an answer does not show what others have asked.
  size_t owner = 0;
  // Tells the log-probabilities of the prompt's tokens, too (Sampling::top_logprobs must be set).
  // Then no beginning of the prompt is taken from the cache.
  bool scores_prompt = false;
  // The answer goes on with a text of the prompt, as in AnswerText.
  bool continues = false;
  // There is no answer: the request ends when the prompt is read.
  bool only_reads = false;
  // Asks for a vector of the prompt instead of an answer: the mean of the last layer's normed states
  // of all tokens, scaled to length 1; of an encoder what it was trained for (Model::SumsOfStates).
  // Implies only_reads; no beginning is taken from the cache.
  bool embeds = false;
  // Of the prompt; their states take the place of their tokens' embeddings.
  std::vector<PromptPicture> pictures = {};
};

}  // namespace rvv_runner
