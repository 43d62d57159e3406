// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "api/api_answer.h"
#include "api/tools.h"
#include "text/answer_parts.h"
#include "text/tokenizer.h"

namespace rvv_runner {

// A time as RFC 3339 writes it. `seconds`: since 1970.
std::string Rfc3339(int64_t seconds);

// The name of a model with Ollama's tag.
std::string TaggedName(const std::string& name);
// A model in Ollama's lists. `bytes`: of its parameters; `digest`: of their index, or empty.
OrderedJson OllamaModel(const std::string& name, int64_t bytes, const std::string& digest);
// When a model is unloaded that never is.
constexpr char kNever[] = "9999-12-31T23:59:59Z";

// Ollama's error object.
OrderedJson OllamaError(const ApiError& error);

// Writes the answer of /api/chat or /api/generate. A stream has a JSON text a line.
class OllamaWriter final : public AnswerWriter {
 public:
  // `chat`: the answer is a message, else a text. `tokenizer` must outlive it.
  OllamaWriter(const Form& form, bool chat, const Tokenizer& tokenizer, AnswerName name,
               Thoughts thoughts);

  // The answer to a request that only loads the model.
  OrderedJson Loaded() const;

  Events Begin() override { return {}; }
  Events Next(size_t answer, const Piece& piece) override;
  Events End(size_t answer, const Ended& ended) override;
  Events Finish() override { return {}; }
  OrderedJson Failed(const ApiError& error) override { return OllamaError(error); }
  Framing framing() const override { return Framing::kLines; }
  OrderedJson Body() const override { return whole_; }

 private:
  using Kind = AnswerPart::Kind;

  struct Call {
    std::string name;
    std::string arguments;
  };

  OrderedJson Line(const std::string& text, const std::string& thought, const OrderedJson& calls,
                   bool done) const;
  Events Take(const std::vector<AnswerPart>& parts);
  void CloseCall(Events* events);

  bool chat_;
  AnswerName name_;
  AnswerParts parts_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  std::string text_, thought_;
  OrderedJson calls_ = OrderedJson::array();
  std::vector<Call> open_;  // the call that is being written, or none
  OrderedJson whole_;
};

}  // namespace rvv_runner
