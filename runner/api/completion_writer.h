// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "api/api_answer.h"
#include "api/api_request.h"
#include "text/answer_parts.h"
#include "text/tokenizer.h"

namespace rvv_runner {

// A prompt that is repeated before its answer.
struct Echo {
  std::string text;
  size_t hidden = 0;  // tokens at its beginning that are not in the text
  size_t added = 0;   // characters of the first token behind them that are not in it either
};

// Writes the answers of /v1/chat/completions and /v1/completions.
class CompletionWriter final : public AnswerWriter {
 public:
  // `tokenizer` must outlive it. `echoes`: of each answer, or none.
  CompletionWriter(const ApiRequest& request, const Tokenizer& tokenizer, AnswerName name,
                   Thoughts thoughts, std::vector<Echo> echoes);

  Events Begin() override;
  Events Next(size_t answer, const Piece& piece) override;
  Events End(size_t answer, const Ended& ended) override;
  Events Finish() override;
  OrderedJson Body() const override;

 private:
  struct Call {
    std::string id;
    std::string name;
    std::string arguments;
  };
  struct Answer {
    Answer(const ToolFormat* format, Thoughts thoughts) : parts(format, thoughts) {}

    AnswerParts parts;  // of a chat
    Echo echo;          // of a text
    bool echoed = false;
    std::string text;
    std::string thought;
    std::vector<Call> calls;
    size_t characters = 0;  // of the prompt that is repeated, and of the text
    OrderedJson logprobs;   // of all tokens; null if they were not asked for
    std::string reason;
  };

  OrderedJson Frame(const char* object) const;
  OrderedJson Choice(size_t answer, const OrderedJson& delta, const OrderedJson& logprobs,
                     const OrderedJson& reason) const;
  OrderedJson Delta(const Answer& answer, const AnswerPart& part) const;
  std::string CallId(size_t answer) const;
  std::string Reason(const Answer& answer, const Ended& ended) const;
  OrderedJson Message(const Answer& answer) const;
  void Collect(size_t answer, const AnswerPart& part);
  Events Parts(size_t answer, const std::vector<AnswerPart>& parts, OrderedJson logprobs);
  Events Repeated(size_t answer, const std::vector<TokenLogprob>& prompt);
  Events TextNext(size_t answer, const Piece& piece);

  OrderedJson ChatLogprobs(Answer* answer, const std::vector<TokenLogprob>& tokens) const;
  OrderedJson ChatLogprob(int32_t token, double logprob) const;
  OrderedJson TextLogprobs(Answer* answer, const std::vector<TokenLogprob>& tokens,
                           bool prompt) const;
  std::string Named(int32_t token) const;

  const Tokenizer& tokenizer_;
  bool chat_;
  bool wants_logprobs_;
  bool include_usage_;
  AnswerName name_;
  Usage usage_;
  std::vector<Answer> answers_;
};

}  // namespace rvv_runner
