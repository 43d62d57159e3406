// SPDX-License-Identifier: Apache-2.0
// Answers as they come from the engine: as server-sent events, or collected.
#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "api/api_answer.h"
#include "api/api_error.h"
#include "server/answering.h"

namespace rvv_runner {

// Whether the server is stopping, and how many answers are open whose clients have to know.
class Stopping {
 public:
  operator bool() const { return begun_; }  // NOLINT: it is asked as a flag
  // Ends all answers with an error. Returns when all streams have sent it, or after `most`: then
  // some clients do not read.
  void Begin(std::chrono::milliseconds most);
  // An answer is open for as long as a copy of the result lives. A request first opens its answer
  // and then checks whether the server is stopping, so that Begin misses no stream.
  std::shared_ptr<void> Open();

 private:
  std::atomic<bool> begun_{false};
  std::atomic<int> open_{0};
};

// The error of requests while the server is stopping.
ApiError StoppingError();

// Makes a response of pieces whose number is unknown.
void SetStream(const std::string& type, const httplib::Request& request,
               httplib::Response& response, const httplib::ContentProviderWithoutLength& provide);

// Sends the answers as a stream of events. Holds `open` until the stream has ended.
void SendStream(std::unique_ptr<AnswerWriter> writer, std::unique_ptr<Answers> answers,
                const Stopping& stopping, std::shared_ptr<void> open,
                const httplib::Request& request, httplib::Response& response);

// Calls `take` with each piece and each end, until all answers have ended. Throws ApiError if an
// answer fails, the server stops or the client is gone.
void AwaitAll(Answers* answers, const Stopping& stopping, const httplib::Request& request,
              const std::function<void(const AnswerEvent&)>& take);

}  // namespace rvv_runner
