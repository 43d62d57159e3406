// SPDX-License-Identifier: Apache-2.0
#include "server/engine_thread.h"

#include <exception>
#include <utility>

#include "input/log.h"

namespace rvv_runner {
namespace {

constexpr double kPatience = 1.0;  // seconds of one wait for work
constexpr int kQuietWaits = 10;    // after which a failure is past

}  // namespace

EngineThread::EngineThread(Engine* engine) : engine_(engine), thread_([this] { Run(); }) {}

EngineThread::~EngineThread() {
  over_ = true;
  engine_->Stop();
  thread_.join();
}

std::string EngineThread::Trouble() const {
  const std::lock_guard guard(mutex_);
  return trouble_;
}

// After a failure the engine goes on with an empty cache. A step that works clears the failure. So
// does a quiet time: a client that obeys /health sends no request that could work.
void EngineThread::Run() {
  int quiet = 0;
  while (!over_) {
    if (!engine_->Wait(engine_->Store() ? 0 : kPatience) || over_) {
      if (++quiet == kQuietWaits) Note("");
      continue;
    }
    quiet = 0;
    try {
      engine_->Step();
      Note("");
    } catch (const std::exception& error) {
      Note(error.what());
    }
  }
}

void EngineThread::Note(const std::string& trouble) {
  const std::lock_guard guard(mutex_);
  if (!trouble.empty() && trouble_ != trouble) {
    Log(LogLevel::kError, "the model failed: " + trouble);
  }
  trouble_ = trouble;
}

}  // namespace rvv_runner
