// SPDX-License-Identifier: Apache-2.0
// Answers as they come from the engine: as server-sent events, or collected.
#pragma once

#include <httplib.h>

#include <atomic>
#include <memory>

#include "api/api_answer.h"
#include "server/answering.h"

namespace rvv_runner {

// Sends the answers as a stream of events.
void SendStream(std::unique_ptr<AnswerWriter> writer, std::unique_ptr<Answers> answers,
                const std::atomic<bool>& stopping, const httplib::Request& request,
                httplib::Response& response);

// Calls `take` with each piece and each end, until all answers have ended. Throws ApiError if an
// answer fails, the server stops or the client is gone.
void AwaitAll(Answers* answers, const std::atomic<bool>& stopping, const httplib::Request& request,
              const std::function<void(const AnswerEvent&)>& take);

}  // namespace rvv_runner
