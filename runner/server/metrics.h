// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "engine/engine.h"

namespace rvv_runner {

// Counts answered requests, and writes all counts in Prometheus's text format (0.0.4).
class Metrics {
 public:
  // `route`: a known path, never a client's text, because it becomes a label.
  void Count(const std::string& route, int status);
  // `stats`: null if this process has no engine. `bodies`: bytes of request bodies that it holds.
  std::string Text(const EngineStats* stats, size_t bodies) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> answered_;
};

}  // namespace rvv_runner
