// SPDX-License-Identifier: Apache-2.0
// Answers several requests at once on one model: continuous batching over TVM's paged KV cache.
//
// One thread calls Step() while there is work (EngineThread, or the main thread of a program
// without a server). Any thread may call Submit, Cancel and Stats. Step() calls the callbacks
// without a lock: they may call Submit and Cancel, and must not block for long. A callback that
// throws ends its request with kError.
//
// A request waits in a queue until the batch has a place and the cache has pages for its prompt and
// its longest answer; so a running request is never suspended. The KV cache of finished requests is
// kept until other requests need its pages. If a prompt has its beginning in common with a kept or
// a running sequence (earlier turns of a chat, a shared system prompt), that part is not computed
// again.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "engine/request.h"
#include "input/errors.h"
#include "text/tokenizer.h"

namespace rvv_runner {

class Model;
class PromptFiles;

// The queue is full: try again later (HTTP's 429).
class QueueFull : public std::runtime_error {
 public:
  explicit QueueFull(const std::string& what) : std::runtime_error(what) {}
};

enum class Lookup {
  kOff,
  kWhereItGains,  // from measured times
  kAlways,
};

struct EngineLimits {
  int64_t sequences = 1;  // that are computed at once, at most the model's CacheLimits say
  int64_t tokens = 0;     // of one sequence, prompt and answer
  int64_t chunk = 0;      // most tokens of one prefill call, at most the model's CacheLimits say
  int64_t queue = 64;     // requests that wait at most
  // Chooses shorter prefill calls, from measured times (Pace): other answers go on, and the engine
  // heeds Cancel within about a second. Then the calls of a prompt depend on the machine.
  bool adaptive = false;
  // Whether tokens of an answer that is decoded alone are guessed by prompt lookup, and verified
  // in one call.
  Lookup lookup = Lookup::kOff;
};

// Counted since the engine started, except where it says "now".
struct EngineStats {
  int64_t prompt_tokens = 0;  // computed
  int64_t cached_tokens = 0;  // of prompts, not computed again
  int64_t answer_tokens = 0;
  int64_t requests = 0;   // finished
  int64_t cancelled = 0;  // of these
  int64_t failed = 0;     // of these
  int64_t refused = 0;    // QueueFull
  double prefill_seconds = 0.0;
  double decode_seconds = 0.0;
  int64_t decode_steps = 0;  // batched calls, and calls that verify guesses
  int64_t mixed_steps = 0;   // of these, calls that also read a part of a prompt
  int64_t guessed_tokens = 0;
  int64_t right_tokens = 0;   // guessed and chosen
  int64_t queued = 0;         // now
  int64_t running = 0;        // now
  int64_t kept = 0;           // now: finished sequences whose cache is kept
  int64_t pages_running = 0;  // now; pages that running sequences share count for each
  int64_t pages_used = 0;     // now, by running and kept sequences; pages of kept ones are given
                              // to requests that need them
  int64_t pages_total = 0;
  int64_t page_tokens = 0;  // tokens of one page
  int64_t cache_bytes = 0;  // of all pages
};

class Engine {
 public:
  // `model` has room for these limits in its KV cache (CacheLimits). `tokenizer` makes the text of
  // pieces; without it (null) pieces hold tokens alone. `files` keep prompts for the next start, or
  // null. All must outlive the engine.
  Engine(Model* model, const Tokenizer* tokenizer, int64_t vocabulary, const EngineLimits& limits,
         PromptFiles* files = nullptr);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues a request and returns its id, which is unique. Throws InputError for a request that can
  // never work (no token, a token outside the vocabulary, sampling out of range; ContextError for a
  // prompt that leaves no room for an answer) and QueueFull when the queue is full. Then it calls no callback.
  uint64_t Submit(Request request);

  // Ends a request: the next Step() calls on_finish with kCancelled before it computes anything.
  // The pages are then kept like those of any finished request, and do not count in
  // EngineStats::pages_running. A finished or unknown id is ignored.
  void Cancel(uint64_t id);

  // Does one round: ends cancelled requests, admits requests that fit, computes one prefill chunk
  // of one sequence, and one decode step of all sequences that are being answered; both in one call
  // where the model can (Model::PrefillAll). Returns false if
  // there was nothing to do. A bad request never makes it throw. It throws RunError or
  // tvm::ffi::Error when the model fails; every running request has then ended with kError, and the
  // engine can go on.
  bool Step();

  // Writes a part of a finished sequence into a file, for when there is nothing else to do. Returns
  // false if there was none to write. Only the thread of Step() may call it.
  bool Store();

  // Blocks until there is work for Step(), Stop() was called, or `seconds` have passed. Returns
  // true if there is work.
  bool Wait(double seconds);
  // Wakes Wait. Any thread may call it.
  void Stop();

  EngineStats Stats() const;
  const EngineLimits& limits() const { return limits_; }

 private:
  class State;
  EngineLimits limits_;
  std::unique_ptr<State> state_;
};

}  // namespace rvv_runner
