// SPDX-License-Identifier: Apache-2.0
// Carries the pieces and the ends of answers from the engine's thread to the HTTP threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/answer_check.h"
#include "engine/engine.h"

namespace rvv_runner {

// The interface to what computes answers: an EngineThread, or a scripted answerer in tests.
// Any thread may call it. It calls the callbacks of a request on its own thread.
class Answerer {
 public:
  virtual ~Answerer() = default;
  // The same as the functions of Engine.
  virtual uint64_t Submit(Request request) = 0;
  virtual void Cancel(uint64_t id) = 0;
  virtual EngineStats Stats() const = 0;
  // The current failure; empty if there is no failure.
  virtual std::string Trouble() const = 0;
};

// A new piece or the end of one of several answers.
struct AnswerEvent {
  size_t answer = 0;  // index of the request
  Piece piece;
  std::optional<Ended> ended;  // if set, `piece` is empty
  std::string fault = {};      // the reason why an answer that has ended does not match its form
};

// The answers to some requests. The destructor cancels those that have not ended.
class Answers {
 public:
  // `check`: of answers that end by themselves; may be null. Throws what Submit throws, after it has
  // cancelled the requests that were submitted.
  Answers(Answerer* answerer, std::vector<Request> requests,
          std::unique_ptr<AnswerCheck> check = nullptr);
  ~Answers();
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  // Waits up to `seconds` for the next event; nullopt if there is no event by then.
  std::optional<AnswerEvent> Next(double seconds);

  // True if Next has returned the ends of all answers.
  bool done() const { return left_ == 0; }

 private:
  class Mailbox;

  void Check(AnswerEvent* event);

  Answerer* answerer_;
  std::unique_ptr<AnswerCheck> check_;
  std::shared_ptr<Mailbox> mailbox_;
  std::vector<uint64_t> ids_;
  size_t left_;
};

}  // namespace rvv_runner
