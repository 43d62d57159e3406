// SPDX-License-Identifier: Apache-2.0
#include "api/api_answer.h"

namespace rvv_runner {
namespace {

constexpr int64_t kCachedBlock = 64;  // tokens

}  // namespace

OrderedJson OrNull(const std::string& text) {
  return text.empty() ? OrderedJson() : OrderedJson(text);
}

OrderedJson ErrorBody(const ApiError& error) {
  return {{"error",
           {{"message", error.what()},
            {"type", error.type()},
            {"param", OrNull(error.param())},
            {"code", OrNull(error.code())}}}};
}

void Usage::Add(size_t answer, const Ended& ended) {
  answer_ += ended.answer_tokens;
  if (answer % static_cast<size_t>(n_) != 0) return;
  prompt_ += ended.prompt_tokens;
  // The exact number would tell how a prompt of another client goes on, token by token.
  cached_ += ended.cached_tokens - ended.cached_tokens % kCachedBlock;
}

OrderedJson Usage::Body() const {
  return {{"prompt_tokens", prompt_},
          {"completion_tokens", answer_},
          {"total_tokens", prompt_ + answer_},
          {"prompt_tokens_details", {{"cached_tokens", cached_}}}};
}

}  // namespace rvv_runner
