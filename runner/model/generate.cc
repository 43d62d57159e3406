// SPDX-License-Identifier: Apache-2.0
#include "model/generate.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "input/errors.h"

namespace rvv_runner {
namespace {

// The call's result; its duration is appended to `seconds`.
template <typename Call>
std::vector<float> Timed(std::vector<double>* seconds, const Call& call) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<float> logits = call();
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  seconds->push_back(passed.count());
  return logits;
}

int32_t Likeliest(const std::vector<float>& logits) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  return static_cast<int32_t>(largest - logits.begin());
}

void RefuseUnsupported(const Library& library) {
  const Json* kind = library.metadata().Find("kv_state_kind");
  if (kind != nullptr && kind->Text("the library's metadata, kv_state_kind") != "kv_cache") {
    throw InputError("the model library keeps its state in another way than a KV cache");
  }
}

}  // namespace

Limits LimitsOf(const Library& library, const Arguments& arguments) {
  RefuseUnsupported(library);
  const auto prompt = static_cast<int64_t>(arguments.tokens.size());
  const int64_t needed = prompt + arguments.max_new;
  const int64_t context = library.Limit("context_window_size", needed);
  const int64_t most = arguments.max_seq ? arguments.max_seq : context;
  if (most > context) {
    throw InputError("--max-seq " + std::to_string(most) + " is more than the model's context of " +
                     std::to_string(context) + " tokens");
  }
  if (prompt > most) {
    throw InputError("the prompt of " + std::to_string(prompt) + " tokens is longer than " +
                     std::to_string(most) + ", the longest sequence");
  }
  if (needed > most) {
    throw InputError("a prompt of " + std::to_string(prompt) + " tokens and --max-new " +
                     std::to_string(arguments.max_new) + " do not fit a sequence of " +
                     std::to_string(most) + " tokens");
  }
  const int64_t largest = library.Limit("prefill_chunk_size", needed);
  const int64_t chunk = arguments.prefill_chunk ? arguments.prefill_chunk : largest;
  if (chunk > largest) {
    throw InputError("--prefill-chunk " + std::to_string(chunk) +
                     " is more than the model library takes, " + std::to_string(largest));
  }
  // The cache is as long as this run needs, not as the model allows.
  return {arguments.max_seq ? arguments.max_seq : needed, std::min(chunk, prompt)};
}

int64_t DefaultMaxNew(const Library& library, const Arguments& arguments, int64_t most) {
  const auto prompt = static_cast<int64_t>(arguments.tokens.size());
  const int64_t context = library.Limit("context_window_size", prompt + most);
  const int64_t room = arguments.max_seq ? std::min(arguments.max_seq, context) : context;
  return std::clamp<int64_t>(room - prompt, 1, most);
}

void CheckTokens(const std::vector<int32_t>& tokens, int64_t vocabulary) {
  for (const int32_t token : tokens) {
    if (token < 0 || token >= vocabulary) {
      throw InputError("--tokens: " + std::to_string(token) + " is outside of the vocabulary of " +
                       std::to_string(vocabulary));
    }
  }
}

Answer Generate(Model* model, const Arguments& arguments, const Limits& limits,
                const std::function<void(const std::vector<float>&)>& on_logits,
                const std::function<void(int32_t)>& on_token) {
  Answer answer;
  std::vector<float> logits;
  const auto end = arguments.tokens.end();
  for (auto at = arguments.tokens.begin(); at != end;) {
    const auto until = at + std::min<int64_t>(limits.chunk, end - at);
    const std::vector<int32_t> chunk(at, until);
    logits = Timed(&answer.prefill_seconds, [&] { return model->Prefill(chunk); });
    at = until;
  }
  while (true) {
    on_logits(logits);
    const int32_t token = Likeliest(logits);
    answer.tokens.push_back(token);
    on_token(token);
    const bool stop = std::count(arguments.stop.begin(), arguments.stop.end(), token) > 0;
    if (stop || static_cast<int64_t>(answer.tokens.size()) == arguments.max_new) return answer;
    logits = Timed(&answer.decode_seconds, [&] { return model->Decode(token); });
  }
}

}  // namespace rvv_runner
