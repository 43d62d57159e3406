// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "api/api_answer.h"
#include "api/api_request.h"
#include "text/answer_parts.h"
#include "text/tokenizer.h"

namespace rvv_runner {

// Writes the answer of /v1/responses: a list of items, which are thoughts, texts and calls.
class ResponseWriter final : public AnswerWriter {
 public:
  // `repeated`: fields of the request. `tokenizer` must outlive it.
  ResponseWriter(const ApiRequest& request, const OrderedJson& repeated, const Tokenizer& tokenizer,
                 AnswerName name, Thoughts thoughts);

  Events Begin() override;
  Events Next(size_t answer, const Piece& piece) override;
  Events End(size_t answer, const Ended& ended) override;
  Events Finish() override;
  OrderedJson Failed(const ApiError& error) override;
  Framing framing() const override { return Framing::kEvents; }
  OrderedJson Body() const override;

 private:
  using Kind = AnswerPart::Kind;

  OrderedJson Event(const std::string& type, const OrderedJson& fields);
  // An event of the item that is open.
  OrderedJson ItemEvent(const std::string& type, const OrderedJson& fields);
  OrderedJson& Open() { return output_.back(); }
  bool IsOpen(Kind kind) const;
  void Take(const AnswerPart& part, Events* events);
  void OpenItem(Kind kind, const std::string& name, Events* events);
  void CloseItem(const char* status, Events* events);

  AnswerName name_;
  OrderedJson repeated_;  // of the request
  AnswerParts parts_;
  Usage usage_{1};
  std::string status_ = "in_progress";
  OrderedJson output_ = OrderedJson::array();
  bool open_ = false;  // the last item is being written
  int64_t sequence_ = 0;
};

}  // namespace rvv_runner
