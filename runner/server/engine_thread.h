// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <thread>

#include "engine/engine.h"
#include "server/answering.h"

namespace rvv_runner {

// Runs an engine on a separate thread.
class EngineThread final : public Answerer {
 public:
  // `engine` must outlive it. Only this object may call the engine's Step.
  explicit EngineThread(Engine* engine);
  ~EngineThread() override;

  uint64_t Submit(Request request) override { return engine_->Submit(std::move(request)); }
  void Cancel(uint64_t id) override { engine_->Cancel(id); }
  EngineStats Stats() const override { return engine_->Stats(); }
  std::string Trouble() const override;

 private:
  void Run();
  void Note(const std::string& trouble);

  Engine* engine_;
  mutable std::mutex mutex_;
  std::string trouble_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace rvv_runner
