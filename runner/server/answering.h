// SPDX-License-Identifier: Apache-2.0
// Between the threads of HTTP and the engine's: answers as they come, and their end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace rvv_runner {

// Whoever answers: the engine on a thread of its own, in tests also a scripted one.
// Any thread may call it; callbacks of a request come from the answerer's thread.
class Answerer {
 public:
  virtual ~Answerer() = default;
  // As Engine's.
  virtual uint64_t Submit(Request request) = 0;
  virtual void Cancel(uint64_t id) = 0;
  virtual EngineStats Stats() const = 0;
  // What is wrong with it; empty while it answers.
  virtual std::string Trouble() const = 0;
};

// What happened to one of several answers.
struct AnswerEvent {
  size_t answer = 0;  // index of the request
  Piece piece;
  std::optional<Ended> ended;  // no piece then
};

// The answers to some requests. Those that have not ended are cancelled when it is destroyed.
class Answers {
 public:
  // Throws as Submit does; then none of the requests goes on.
  Answers(Answerer* answerer, std::vector<Request> requests);
  ~Answers();
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  // The next event, in the order of events; nothing when none came within so many seconds.
  std::optional<AnswerEvent> Next(double seconds);

  // All answers have ended, and Next has told so.
  bool done() const { return left_ == 0; }

 private:
  class Mailbox;

  Answerer* answerer_;
  std::shared_ptr<Mailbox> mailbox_;
  std::vector<uint64_t> ids_;
  size_t left_;
};

}  // namespace rvv_runner
