// SPDX-License-Identifier: Apache-2.0
// Answers several requests at once on one model: continuous batching over TVM's paged KV cache.
//
// One thread (the engine's own: a program without a server uses its only one) calls Step() for as
// long as there is work; any thread may call Submit, Cancel and Stats. Callbacks are called on the
// engine's thread from inside of Step(), without a lock held: they may call Submit and Cancel, and
// must not block for long. A callback that throws ends its request with kError.
//
// A request waits in a queue until a place in the batch and the pages for its prompt and its longest
// answer are there: a running request is never put out again. The KV cache of finished requests is
// kept while nobody needs its pages. A prompt that begins as a kept or a running sequence does is
// not computed again so far: a chat's earlier turns, a system prompt that requests share.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "engine/request.h"
#include "text/tokenizer.h"

namespace rvv_runner {

class Model;

// The queue is full: try again later (HTTP's 429).
class QueueFull : public std::runtime_error {
 public:
  explicit QueueFull(const std::string& what) : std::runtime_error(what) {}
};

struct EngineLimits {
  int64_t sequences = 1;  // that are computed at once, at most the model's CacheLimits say
  int64_t tokens = 0;     // of one sequence, prompt and answer
  int64_t chunk = 0;      // most tokens of one prefill call, at most the model's CacheLimits say
  int64_t queue = 64;     // requests that wait at most
};

// Since the engine started, but where it says "now".
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
  int64_t decode_steps = 0;   // batched calls
  int64_t queued = 0;         // now
  int64_t running = 0;        // now
  int64_t kept = 0;           // now: finished sequences whose cache is kept
  int64_t pages_running = 0;  // now; pages that running sequences share count for each
  int64_t pages_used = 0;     // now, by running and kept sequences; those of kept ones are free
                              // for whoever needs them
  int64_t pages_total = 0;
  int64_t page_tokens = 0;  // tokens of one page
  int64_t cache_bytes = 0;  // of all pages
};

class Engine {
 public:
  // `model` has room for these limits in its KV cache (CacheLimits). `tokenizer` makes the text of
  // pieces; without it (null) pieces hold tokens alone. Both must outlive the engine.
  Engine(Model* model, const Tokenizer* tokenizer, int64_t vocabulary, const EngineLimits& limits);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues a request and gives its id, which is never given again. Throws InputError for what can
  // never be done (no token, a token outside of the vocabulary, a prompt that leaves no room for an
  // answer, sampling out of range) and QueueFull beyond the bound. Nothing is called back then.
  uint64_t Submit(Request request);

  // Ends a request: on_finish is called with kCancelled by the next Step(), before it computes
  // anything, and its pages are free for whoever needs them (kept until then, as of all that is
  // finished: EngineStats::pages_running is without them). An id that is finished or unknown is ignored.
  void Cancel(uint64_t id);

  // One round: ends what was cancelled, admits what fits, computes one prefill chunk of one
  // sequence and one decode step of all that are in their answer. False when there was nothing to
  // do. Throws nothing for a request's sake; RunError and tvm::ffi::Error when the model itself
  // fails: every running request has then ended with kError, and the engine may go on.
  bool Step();

  // Blocks until there is work for Step(), or Stop() was called, or so many seconds have passed.
  // True when there is work.
  bool Wait(double seconds);
  // Wakes Wait; from any thread.
  void Stop();

  EngineStats Stats() const;
  const EngineLimits& limits() const { return limits_; }

 private:
  class State;
  EngineLimits limits_;
  std::unique_ptr<State> state_;
};

}  // namespace rvv_runner
