// SPDX-License-Identifier: Apache-2.0
#include "server/engine_thread.h"

#include <exception>
#include <iostream>
#include <utility>

namespace rvv_runner {
namespace {

constexpr double kPatience = 1.0;  // seconds of one wait for work

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

// The engine may go on after a failure: a step that does something again clears it.
void EngineThread::Run() {
  while (!over_) {
    if (!engine_->Wait(kPatience) || over_) continue;
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
    std::cerr << "runner: the model failed: " << trouble << "\n";
  }
  trouble_ = trouble;
}

}  // namespace rvv_runner
