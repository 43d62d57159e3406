// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <httplib.h>

#include <atomic>
#include <cstdint>
#include <semaphore>
#include <string>
#include <vector>

#include "api/api_answer.h"
#include "api/api_request.h"
#include "grammar/grammar.h"
#include "server/accepted.h"
#include "server/answering.h"
#include "server/body.h"
#include "server/metrics.h"
#include "text/tokenizer.h"

namespace rvv_runner {

// A served model: its tokenizer and its answerer.
struct Served {
  std::string name;  // of the model, as in requests
  const Tokenizer* tokenizer = nullptr;
  Answerer* answerer = nullptr;
  GrammarCompiler* grammars = nullptr;
  Sampling defaults;
  int64_t context = 0;                // tokens of one sequence
  const Accepted* aliases = nullptr;  // other names of the model
  bool strict = false;                // refuse unknown fields
};

// Answers requests that passed the checks of HttpServer. Each function throws ApiError.
class Endpoints {
 public:
  explicit Endpoints(Served served);

  void Page(const httplib::Request& request, httplib::Response& response) const;
  void Health(const httplib::Request& request, httplib::Response& response) const;
  void Numbers(const httplib::Request& request, httplib::Response& response) const;
  void Models(const httplib::Request& request, httplib::Response& response) const;
  void Model(const httplib::Request& request, httplib::Response& response) const;
  // Drops the body when it has been read.
  void Complete(bool chat, const httplib::Request& request, size_t owner, Body* body,
                httplib::Response& response);

  Metrics& metrics() { return metrics_; }
  BodyBudget& bodies() { return bodies_; }
  // Ends all running answers.
  void Stop() { stopping_ = true; }

 private:
  nlohmann::json About() const;
  bool Named(const std::string& model) const;
  struct Asked {
    ApiRequest api;  // without its prompts
    std::vector<Request> requests;
    AnswerParts::Thoughts thoughts = AnswerParts::Thoughts::kNone;
    size_t dropped = 0;  // bytes of the prompts that have no token in the model
  };

  Asked Read(bool chat, Body* body);
  void MakeRequests(Asked* asked) const;
  AnswerParts::Thoughts Thoughts(const ApiRequest& asked) const;
  void Whole(Answers* answers, AnswerWriter* writer, const httplib::Request& request) const;

  Served served_;
  int64_t started_;     // seconds since 1970
  std::string prefix_;  // of the ids of this run's answers
  std::atomic<uint64_t> answered_{0};
  std::atomic<bool> stopping_{false};
  // What is made of a body takes many times its size.
  std::counting_semaphore<> long_bodies_{1};
  std::counting_semaphore<> short_bodies_{4};
  Metrics metrics_;
  BodyBudget bodies_;
};

}  // namespace rvv_runner
