// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <semaphore>
#include <string>
#include <vector>

#include "api/api_answer.h"
#include "api/api_request.h"
#include "api/embedding_request.h"
#include "server/asked.h"
#include "server/body.h"
#include "server/event_stream.h"
#include "server/metrics.h"
#include "server/served.h"

namespace rvv_runner {

// Answers requests that passed the checks of HttpServer. Each function throws ApiError.
class Endpoints {
 public:
  explicit Endpoints(Served served);

  void Health(const httplib::Request& request, httplib::Response& response) const;
  void Numbers(const httplib::Request& request, httplib::Response& response) const;
  void Models(const httplib::Request& request, httplib::Response& response) const;
  void Model(const httplib::Request& request, httplib::Response& response) const;
  void TokenizerInfo(const httplib::Request& request, httplib::Response& response) const;
  // These drop the body when they have read it.
  void Complete(ApiKind kind, const httplib::Request& request, size_t owner, Body* body,
                httplib::Response& response);
  void Respond(const httplib::Request& request, size_t owner, Body* body,
               httplib::Response& response);
  void Embed(const httplib::Request& request, size_t owner, Body* body,
             httplib::Response& response);
  // Ollama's. `chat`: /api/chat, else /api/generate. `older`: /api/embeddings, else /api/embed.
  void OllamaAnswer(bool chat, const httplib::Request& request, size_t owner, Body* body,
                    httplib::Response& response);
  void OllamaEmbed(bool older, const httplib::Request& request, size_t owner, Body* body,
                   httplib::Response& response);
  void OllamaShow(Body* body, httplib::Response& response);
  void OllamaModels(bool running, httplib::Response& response) const;
  void Tokenize(Body* body, httplib::Response& response);
  void Detokenize(Body* body, httplib::Response& response);

  Metrics& metrics() { return metrics_; }
  BodyBudget& bodies() { return bodies_; }
  // Ends all running answers; see Stopping::Begin.
  void Stop(std::chrono::milliseconds most) { stopping_.Begin(most); }

 private:
  OrderedJson About() const;
  // The vectors of texts, and the number of their tokens.
  struct Vectors {
    std::vector<std::vector<float>> vectors;
    int64_t tokens = 0;
    size_t dropped = 0;
  };
  Vectors VectorsOf(const EmbeddingRequest& asked, const std::string& input, Body* body,
                    const httplib::Request& request, size_t owner);
  template <typename Work>
  auto Read(Body* body, const Work& work);
  AnswerName NewName(const std::string& kind);
  Asked RequestsFor(Body* body, ApiRequest api) const;
  void Answer(Asked asked, size_t owner, std::unique_ptr<AnswerWriter> writer,
              const httplib::Request& request, httplib::Response& response);

  Served served_;
  int64_t started_;     // seconds since 1970
  std::string prefix_;  // of the ids of this run's answers
  std::atomic<uint64_t> answered_{0};
  Stopping stopping_;
  // What is made of a body takes many times its size.
  std::counting_semaphore<> long_bodies_{1};
  std::counting_semaphore<> short_bodies_{4};
  Metrics metrics_;
  BodyBudget bodies_;
};

}  // namespace rvv_runner
