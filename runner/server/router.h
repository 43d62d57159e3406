// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "server/body.h"
#include "server/metrics.h"
#include "server/model_servers.h"

namespace rvv_runner {

// Hands requests that passed the checks of HttpServer to the server of the model that they name.
class Router {
 public:
  explicit Router(ModelServers* servers);

  // Answers a path of ApiPaths, as `path` describes it. Throws ApiError.
  void Get(const std::string& path, const httplib::Request& request, httplib::Response& response);
  void Post(const httplib::Request& request, Body* body, httplib::Response& response);

  Metrics& metrics() { return metrics_; }
  BodyBudget& bodies() { return bodies_; }
  // The servers of models end their answers by themselves; returns after `most`.
  void Stop(std::chrono::milliseconds most);

 private:
  // The index of a model that a request names; the last one that was asked for, if it names none.
  size_t Find(const std::string& name);
  // `kept`: how long the model stays loaded afterwards.
  void Forward(size_t model, const httplib::Request& request, const std::string& body,
               ModelServers::Kept kept, httplib::Response& response);

  ModelServers* servers_;
  int64_t started_;
  std::atomic<size_t> last_{0};
  Metrics metrics_;
  BodyBudget bodies_;
};

}  // namespace rvv_runner
