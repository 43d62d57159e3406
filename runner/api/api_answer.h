// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "api/api_error.h"
#include "engine/request.h"
#include "input/json.h"

namespace rvv_runner {

// A text, or null if it is empty.
OrderedJson OrNull(const std::string& text);

// OpenAI's error object.
OrderedJson ErrorBody(const ApiError& error);

// Counts the tokens of prompts and answers when answers end.
class Usage {
 public:
  // `n`: answers to each prompt. The tokens of a prompt count once.
  explicit Usage(int64_t n) : n_(n) {}
  void Add(size_t answer, const Ended& ended);

  int64_t prompt() const { return prompt_; }
  int64_t cached() const { return cached_; }
  int64_t answer() const { return answer_; }
  // As completions have it.
  OrderedJson Body() const;

 private:
  int64_t n_;
  int64_t prompt_ = 0;
  int64_t cached_ = 0;
  int64_t answer_ = 0;
};

// Who answers, and when.
struct AnswerName {
  std::string id;
  std::string model;
  int64_t created = 0;  // seconds since 1970
};

// How a stream writes its events.
enum class Framing {
  kMarkedEvents,  // server-sent events; the line [DONE] ends them
  kEvents,        // server-sent events
  kLines,         // a JSON text a line
};

// Writes the answers to one request: as events of a stream, and as a whole.
class AnswerWriter {
 public:
  using Events = std::vector<OrderedJson>;

  virtual ~AnswerWriter() = default;

  // The events before all pieces, of a piece, of the end of an answer, and after all answers.
  virtual Events Begin() = 0;
  virtual Events Next(size_t answer, const Piece& piece) = 0;
  virtual Events End(size_t answer, const Ended& ended) = 0;
  virtual Events Finish() = 0;
  // The event of an error that ends a stream.
  virtual OrderedJson Failed(const ApiError& error) { return ErrorBody(error); }
  virtual Framing framing() const { return Framing::kMarkedEvents; }

  // The answers without a stream, after Finish.
  virtual OrderedJson Body() const = 0;
};

}  // namespace rvv_runner
