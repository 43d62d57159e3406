// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "api/answer_parts.h"
#include "api/api_error.h"
#include "api/api_request.h"
#include "engine/request.h"
#include "text/tokenizer.h"

namespace rvv_runner {

// OpenAI's error object.
nlohmann::json ErrorBody(const ApiError& error);

// Counts the tokens of prompts and answers when answers end.
class Usage {
 public:
  // `n`: answers to each prompt. The tokens of a prompt count once.
  explicit Usage(int64_t n) : n_(n) {}
  void Add(size_t answer, const Ended& ended);
  nlohmann::json Body() const;

 private:
  int64_t n_;
  int64_t prompt_ = 0;
  int64_t cached_ = 0;
  int64_t answer_ = 0;
};

// Writes the answers to one request: pieces as chunks of a stream, or all at the end.
class AnswerWriter {
 public:
  // `tokenizer` must outlive it. `created`: seconds since 1970.
  AnswerWriter(const ApiRequest& request, const Tokenizer& tokenizer, std::string id,
               std::string model, int64_t created,
               AnswerParts::Thoughts thoughts = AnswerParts::Thoughts::kNone);

  // Chunks of a stream: the first of an answer (null unless it is a chat), those of a piece, the
  // last ones of an answer, and the usage.
  nlohmann::json First(size_t answer) const;
  std::vector<nlohmann::json> Chunks(size_t answer, const Piece& piece);
  std::vector<nlohmann::json> Last(size_t answer, const Ended& ended);
  nlohmann::json Tail() const;

  // Collects the body of an answer without a stream.
  void Add(size_t answer, const Piece& piece);
  void Add(size_t answer, const Ended& ended);
  nlohmann::json Body() const;

 private:
  struct Call {
    std::string id;
    std::string name;
    std::string arguments;
  };
  struct Collected {
    std::string text;
    std::string thought;
    std::vector<Call> calls;
    std::vector<TokenLogprob> logprobs;
    std::string reason;
  };

  nlohmann::json Frame(const char* object) const;
  nlohmann::json Delta(size_t answer, const AnswerPart& part) const;
  std::string CallId(size_t answer) const;
  std::string Reason(size_t answer, const Ended& ended) const;
  nlohmann::json Message(const Collected& collected) const;
  void Collect(size_t answer, const std::vector<AnswerPart>& parts);
  nlohmann::json Choice(size_t answer, const nlohmann::json& delta, const nlohmann::json& logprobs,
                        const nlohmann::json& reason) const;
  nlohmann::json Logprobs(const std::vector<TokenLogprob>& tokens, size_t offset) const;
  nlohmann::json ChatLogprob(int32_t token, double logprob) const;
  std::string Named(int32_t token) const;

  const Tokenizer& tokenizer_;
  bool chat_;
  bool wants_logprobs_;
  bool include_usage_;
  std::string id_;
  std::string model_;
  int64_t created_;
  Usage usage_;
  std::vector<Collected> collected_;
  std::vector<AnswerParts> parts_;  // of each answer to a chat
  std::vector<size_t> offsets_;     // characters of each answer that were streamed
};

}  // namespace rvv_runner
