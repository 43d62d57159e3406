// SPDX-License-Identifier: Apache-2.0
// Answers without a model: each request gets its prompt's tokens from the last to the first, again
// and again, until its limit (without one, once). An answer with a grammar ends by itself, whatever
// its text is.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "server/answering.h"
#include "text/tokenizer.h"

namespace rvv_runner {

class ScriptedAnswerer final : public Answerer {
 public:
  // `pace`: seconds from one token to the next; below zero, answers are given inside of Submit.
  ScriptedAnswerer(const Tokenizer& tokenizer, size_t queue, double pace)
      : tokenizer_(tokenizer), queue_(queue), pace_(pace), thread_([this] { Run(); }) {}

  ~ScriptedAnswerer() override {
    {
      const std::lock_guard guard(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  uint64_t Submit(Request request) override {
    const std::lock_guard guard(mutex_);
    if (waiting_.size() >= queue_) {
      ++stats_.refused;
      throw QueueFull("the queue of " + std::to_string(queue_) + " requests is full");
    }
    const uint64_t id = ++last_;
    if (pace_ < 0) {
      Answer(id, request);
      return id;
    }
    waiting_.emplace_back(id, std::move(request));
    changed_.notify_all();
    return id;
  }

  void Cancel(uint64_t id) override {
    const std::lock_guard guard(mutex_);
    cancelled_.insert(id);
    changed_.notify_all();
  }

  EngineStats Stats() const override {
    const std::lock_guard guard(mutex_);
    EngineStats stats = stats_;
    stats.queued = static_cast<int64_t>(waiting_.size());
    stats.requests = answers_;
    stats.cancelled = cancelled_answers_;
    return stats;
  }

  std::string Trouble() const override { return ""; }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return over_ || !waiting_.empty(); });
      if (over_) return;
      auto [id, request] = std::move(waiting_.front());
      waiting_.pop_front();
      stats_.running = 1;
      lock.unlock();
      Answer(id, request);
      lock.lock();
      stats_.running = 0;
    }
  }

  bool Gone(uint64_t id) {
    if (pace_ < 0) return false;
    std::unique_lock lock(mutex_);
    const auto pace = std::chrono::duration<double>(pace_);
    return changed_.wait_for(lock, pace, [&] { return over_ || cancelled_.contains(id); });
  }

  void Answer(uint64_t id, const Request& request) {
    AnswerText text(tokenizer_, request.continues);
    Ended ended;
    ended.prompt_tokens = static_cast<int64_t>(request.tokens.size());
    const int64_t most =
        request.sampling.max_tokens ? request.sampling.max_tokens : ended.prompt_tokens;
    ended.finish = request.grammar ? Finish::kStop : Finish::kLength;
    Piece read;
    for (const int32_t token : request.tokens) {
      const double logprob = read.prompt.empty() ? std::nan("") : -0.5;
      if (request.scores_prompt) read.prompt.push_back({token, logprob, {{token, logprob}}});
    }
    if (request.scores_prompt) request.on_piece(read);
    // Where nobody waits between tokens a fuzzer's input has to be done within its time.
    if (request.embeds) ended.embedding = {0.6F, -0.8F};
    const bool only_reads = request.only_reads || request.embeds;
    const int64_t bound = only_reads ? 0 : std::min<int64_t>(most, pace_ < 0 ? 64 : 4096);
    while (ended.answer_tokens < bound) {
      if (Gone(id)) {
        ended.finish = Finish::kCancelled;
        break;
      }
      const int64_t back = ended.answer_tokens % ended.prompt_tokens + 1;
      const int32_t token = request.tokens[request.tokens.size() - static_cast<size_t>(back)];
      Piece piece{text.Next(token), {token}, {}, {}};
      if (request.sampling.top_logprobs >= 0) {
        piece.logprobs.push_back({token, -0.5, {{token, -0.5}}});
      }
      ++ended.answer_tokens;
      request.on_piece(piece);
    }
    if (ended.finish == Finish::kCancelled) ++cancelled_answers_;
    ++answers_;
    request.on_finish(ended);
  }

  const Tokenizer& tokenizer_;
  size_t queue_;
  double pace_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<uint64_t, Request>> waiting_;
  std::set<uint64_t> cancelled_;
  uint64_t last_ = 0;
  bool over_ = false;
  EngineStats stats_;
  // Counted by the thread that answers, without the lock.
  std::atomic<int64_t> answers_{0};
  std::atomic<int64_t> cancelled_answers_{0};
  std::thread thread_;
};

}  // namespace rvv_runner
