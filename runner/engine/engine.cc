// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "engine/answer.h"
#include "engine/cache_room.h"
#include "engine/pace.h"
#include "engine/prompt_lookup.h"
#include "input/errors.h"
#include "model/model.h"

namespace rvv_runner {
namespace {

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void CheckTokens(const std::vector<int32_t>& tokens, int64_t vocabulary) {
  for (const int32_t token : tokens) {
    if (token < 0 || token >= vocabulary) {
      throw InputError("token " + std::to_string(token) + " is outside the vocabulary of " +
                       std::to_string(vocabulary));
    }
  }
}

}  // namespace

class Engine::State {
 public:
  State(Model* model, const Tokenizer* tokenizer, int64_t vocabulary, const EngineLimits& limits,
        PromptFiles* files)
      : model_(model),
        tokenizer_(tokenizer),
        vocabulary_(vocabulary),
        limits_(limits),
        room_(model, files),
        pace_(limits.chunk, limits.adaptive) {
    stats_.pages_total = model->pages();
    stats_.page_tokens = Model::kPageTokens;
    stats_.cache_bytes = model->bytes();
    Publish();
  }

  uint64_t Submit(Request request) {
    const int64_t longest = Check(request);
    const std::lock_guard lock(mutex_);
    if (std::ssize(waiting_) >= limits_.queue) {
      ++stats_.refused;
      throw QueueFull("the queue is full: " + std::to_string(limits_.queue) + " requests wait");
    }
    const uint64_t id = next_++;
    waiting_.push_back(std::make_unique<Answer>(id, std::move(request), longest, tokenizer_));
    live_.insert(id);
    stats_.queued = std::ssize(waiting_);
    wake_.notify_all();
    return id;
  }

  void Cancel(uint64_t id) {
    const std::lock_guard lock(mutex_);
    if (live_.contains(id)) cancelled_.insert(id);
    wake_.notify_all();
  }

  bool Step() {
    EndCancelled();
    try {
      Admit();
      if (running_.empty()) return false;
      PrefillAndDecode();
    } catch (const std::exception& error) {
      FailAll(error.what());
      throw;
    }
    Publish();
    return true;
  }

  bool Store() { return room_.Store(); }

  bool Wait(double seconds) {
    std::unique_lock lock(mutex_);
    const auto work = [&] { return !live_.empty(); };
    wake_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return work() || stop_; });
    stop_ = false;
    return work();
  }

  void Stop() {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    wake_.notify_all();
  }

  EngineStats Stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  using Answers = std::list<std::unique_ptr<Answer>>;
  using Prompt = Answer::Tokens::const_iterator;

  // Tokens of the prompt and its longest answer.
  int64_t Check(const Request& request) const {
    if (request.tokens.empty()) throw InputError("the prompt has no tokens");
    if (!request.embeds && model_->encodes()) throw InputError(kOnlyVectors);
    if (!request.pictures.empty() && !model_->sees()) throw InputError(kOnlyText);
    if (request.embeds && !model_->embeds()) {
      throw InputError(
          "the model library has no function prefill_to_last_hidden_states, which gives vectors of "
          "texts");
    }
    CheckTokens(request.tokens, vocabulary_);
    CheckSampling(request.sampling, vocabulary_);
    const auto prompt = std::ssize(request.tokens);
    const auto text = [](int64_t number) { return std::to_string(number); };
    const bool only_reads = request.only_reads || request.embeds;
    if (only_reads ? prompt > limits_.tokens : prompt >= limits_.tokens) {
      throw ContextError("the prompt of " + text(prompt) +
                         " tokens leaves no room for an answer in the longest sequence, " +
                         text(limits_.tokens) + " tokens (--max-seq)");
    }
    // A longer answer than fits ends at the longest sequence, as with other servers.
    const int64_t most = request.sampling.max_tokens;
    const int64_t whole = most > 0 ? std::min(prompt + most, limits_.tokens) : limits_.tokens;
    const int64_t longest = only_reads ? prompt : whole;
    if (!room_.Fits(longest)) {
      throw ContextError("a sequence of " + text(longest) +
                         " tokens does not fit into the KV cache of " +
                         text(model_->pages() * Model::kPageTokens));
    }
    return longest;
  }

  void EndCancelled() {
    std::set<uint64_t> ids;
    Answers ended;
    {
      const std::lock_guard lock(mutex_);
      ids.swap(cancelled_);
      MoveOut(&waiting_, ids, &ended);
      stats_.queued = std::ssize(waiting_);
    }
    for (auto& answer : ended) End(std::move(answer), Finish::kCancelled);
    ended.clear();
    MoveOut(&running_, ids, &ended);
    for (auto& answer : ended) End(std::move(answer), Finish::kCancelled);
  }

  static void MoveOut(Answers* from, const std::set<uint64_t>& ids, Answers* to) {
    for (auto it = from->begin(); it != from->end();) {
      const auto next = std::next(it);
      if (ids.contains((*it)->id())) to->splice(to->end(), *from, it);
      it = next;
    }
  }

  // Admit requests in their order, so that a long one does not wait for ever.
  void Admit() {
    const std::lock_guard lock(mutex_);
    while (!waiting_.empty() && std::ssize(running_) < limits_.sequences) {
      Answer& first = *waiting_.front();
      std::optional<CacheRoom::Place> place;
      try {
        place = first.starts_empty() ? room_.TakeEmpty(first.longest(), first.owner())
                                     : room_.Take(first.key(), first.longest(), first.owner());
      } catch (...) {
        // End it with the others: it would make each later step fail.
        running_.splice(running_.end(), waiting_, waiting_.begin());
        throw;
      }
      if (!place) break;
      first.Start(place->sequence, place->ready);
      stats_.cached_tokens += place->ready;
      running_.splice(running_.end(), waiting_, waiting_.begin());
    }
    stats_.queued = std::ssize(waiting_);
    stats_.running = std::ssize(running_);
  }

  std::vector<Answers::iterator> Decoding() {
    std::vector<Answers::iterator> all;
    for (auto it = running_.begin(); it != running_.end(); ++it) {
      if ((*it)->unread() == 0) all.push_back(it);
    }
    return all;
  }

  void PrefillAndDecode() {
    const auto reading =
        std::ranges::find_if(running_, [](const auto& answer) { return answer->unread() > 0; });
    const auto decoding = Decoding();
    if (reading == running_.end()) {
      if (decoding.size() > 1 || !Guess(decoding.front())) DecodeAll(decoding);
    } else if (const auto* picture = (*reading)->Unseen(limits_.chunk)) {
      See(reading->get(), *picture);
      DecodeAll(decoding);
    } else if ((*reading)->embeds()) {
      Embed();
      DecodeAll(Decoding());
    } else if (FoundInFile(reading->get())) {
      DecodeAll(decoding);
    } else if (FitTogether(**reading, decoding)) {
      PrefillBeside(reading, decoding);
    } else {
      Prefill(reading);
      DecodeAll(Decoding());
    }
  }

  // Computes the states of a picture, in one call however long it takes.
  void See(Answer* answer, const PreparedPicture& picture) {
    const auto start = Clock::now();
    auto states = model_->See(picture);
    const double seconds = SecondsSince(start);
    answer->See(std::move(states), seconds);
    Count([&](EngineStats* stats) { stats->prefill_seconds += seconds; });
  }

  // Takes a block of the prompt from a file. Returns false if no file has it.
  bool FoundInFile(Answer* answer) {
    if (!answer->may_be_in_files() || answer->starts_empty()) return false;
    const int64_t tokens = room_.ReadFile(answer->sequence(), answer->key());
    answer->Found(tokens);
    Count([&](EngineStats* stats) { stats->cached_tokens += tokens; });
    return tokens > 0;
  }

  // True if one call, which reads the weights once, can read a part of a prompt and the last tokens
  // of these answers. Now and then, and for a new number of answers, it is false, so that a decode
  // call is measured.
  bool FitTogether(const Answer& reading, const std::vector<Answers::iterator>& decoding) const {
    const auto count = std::ssize(decoding);
    if (!model_->prefills_together() || reading.scores_prompt()) return false;
    if (count == 0 || count >= std::min(model_->batch(), limits_.chunk)) return false;
    return pace_.Knows(count);
  }

  void PrefillBeside(Answers::iterator reading, const std::vector<Answers::iterator>& decoding) {
    const int64_t most = std::max<int64_t>(pace_.Rows(true) - std::ssize(decoding), 1);
    const auto [first, last] = (*reading)->Chunk(ToCheckpoint(**reading, most));
    Rows rows;
    for (const auto& answer : decoding) {
      rows.sequences.push_back((*answer)->sequence());
      rows.lengths.push_back(1);
      rows.tokens.push_back((*answer)->last());
    }
    rows.sequences.push_back((*reading)->sequence());
    rows.lengths.push_back(last - first);
    rows.shown = (*reading)->ShownIn(last - first, std::ssize(rows.tokens));
    rows.tokens.insert(rows.tokens.end(), first, last);
    const auto start = Clock::now();
    const auto logits = model_->PrefillAll(rows);
    const double seconds = SecondsSince(start);
    const auto count = std::ssize(rows.tokens);
    pace_.ReadBeside(count, seconds);
    const double of_prompt =
        seconds * static_cast<double>(last - first) / static_cast<double>(count);
    Count([&](EngineStats* stats) {
      ++stats->mixed_steps;
      stats->prefill_seconds += of_prompt;
      stats->decode_seconds += seconds - of_prompt;
    });
    NextOfAll(decoding, rows.tokens, logits, seconds);
    HasRead(reading, {first, last}, logits.back(), seconds);
  }

  // Tokens of a prompt that are behind the checkpoint of its recurrent states; 0 if it gets none. The
  // next prompt of a chat often differs in the last ones, which begin an answer.
  int64_t AfterCheckpoint(const Answer& answer) const {
    const auto prompt = std::ssize(answer.prompt());
    if (!model_->recurrent() || answer.starts_empty() || prompt < 4 * Model::kPageTokens) return 0;
    return prompt % Model::kPageTokens + Model::kPageTokens;
  }

  // At most `most` tokens, so that a call ends where a checkpoint is kept.
  int64_t ToCheckpoint(const Answer& answer, int64_t most) const {
    const int64_t before = answer.unread() - AfterCheckpoint(answer);
    return before > 0 ? std::min(most, before) : most;
  }

  void Prefill(Answers::iterator reading) {
    Answer& answer = **reading;
    const bool scored = answer.scores_prompt();
    const int64_t rows = pace_.Rows(!Decoding().empty());
    const int64_t most = scored ? std::min(rows, model_->scored()) : rows;
    const auto [first, last] = answer.Chunk(ToCheckpoint(answer, most));
    const auto start = Clock::now();
    const auto logits =
        scored ? Score(&answer, {first, last})
               : model_->Prefill(answer.sequence(), {first, last}, answer.ShownIn(last - first, 0));
    const double seconds = SecondsSince(start);
    pace_.Read(last - first, seconds);
    Count([&](EngineStats* stats) { stats->prefill_seconds += seconds; });
    HasRead(reading, {first, last}, logits, seconds);
  }

  // Notes what a call has read of a prompt, and the logits after it.
  void HasRead(Answers::iterator reading, const std::pair<Prompt, Prompt>& part,
               const std::vector<float>& logits, double seconds) {
    Answer& answer = **reading;
    const auto& [first, last] = part;
    const auto key = answer.key().begin() + (first - answer.prompt().begin());
    room_.Computed(answer.sequence(), key, key + (last - first));
    answer.Read(last - first, seconds);
    if (answer.unread() > 0 && answer.unread() == AfterCheckpoint(answer)) {
      model_->ForgetCheckpoints(answer.sequence(), 0);
      room_.Keep(answer.sequence());
    }
    Count([&](EngineStats* stats) { stats->prompt_tokens += last - first; });
    if (answer.unread() > 0) {
      // The next prompt is read next, so that a short one does not wait for a long one.
      running_.splice(running_.end(), running_, reading);
      return;
    }
    answer.only_reads() ? Leave(reading, Finish::kLength) : Next(reading, logits);
  }

  // Reads tokens of a prompt that is scored. Returns the logits after the last one.
  std::vector<float> Score(Answer* answer, const std::vector<int32_t>& tokens) {
    auto rows = model_->PrefillRows(answer->sequence(), tokens);
    answer->Score(rows);
    return std::move(rows.back());
  }

  // Reads tokens of texts whose vectors are asked, of as many texts as one call takes.
  void Embed() {
    Rows rows;
    std::vector<std::pair<Answers::iterator, std::pair<Prompt, Prompt>>> parts;
    const int64_t most = pace_.Rows(!Decoding().empty());
    for (auto it = running_.begin(); it != running_.end(); ++it) {
      const int64_t left = most - std::ssize(rows.tokens);
      if (left <= 0 || std::ssize(parts) == model_->batch()) break;
      if (!(*it)->embeds() || (*it)->unread() == 0) continue;
      // An encoder reads whole texts.
      const int64_t whole = model_->encodes() ? (*it)->unread() : 0;
      if (whole > left && !parts.empty()) continue;
      const auto part = (*it)->Chunk(std::max(left, whole));
      rows.sequences.push_back((*it)->sequence());
      rows.lengths.push_back(part.second - part.first);
      rows.tokens.insert(rows.tokens.end(), part.first, part.second);
      parts.emplace_back(it, part);
    }
    const auto start = Clock::now();
    const auto sums = model_->SumsOfStates(rows);
    const double seconds = SecondsSince(start);
    pace_.Read(std::ssize(rows.tokens), seconds);
    Count([&](EngineStats* stats) { stats->prefill_seconds += seconds; });
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto& [answer, part] = parts[i];
      (*answer)->AddStates(sums[i], model_->normalizes());
      HasRead(answer, part, {}, seconds);
    }
  }

  void DecodeAll(const std::vector<Answers::iterator>& all) {
    const auto batch = static_cast<size_t>(model_->batch());
    for (size_t at = 0; at < all.size(); at += batch) {
      Decode({all.begin() + static_cast<std::ptrdiff_t>(at),
              all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), at + batch))});
    }
  }

  void Decode(const std::vector<Answers::iterator>& answers) {
    std::vector<int64_t> sequences;
    std::vector<int32_t> tokens;
    for (const auto& answer : answers) {
      sequences.push_back((*answer)->sequence());
      tokens.push_back((*answer)->last());
    }
    const auto start = Clock::now();
    const auto rows = model_->Decode(sequences, tokens);
    const double seconds = SecondsSince(start);
    pace_.Decoded(std::ssize(answers), seconds);
    Count([&](EngineStats* stats) { stats->decode_seconds += seconds; });
    NextOfAll(answers, tokens, rows, seconds);
  }

  // Notes that a call has read the last tokens of answers, the first of `tokens`, and chooses the
  // next ones from the first of `rows`.
  void NextOfAll(const std::vector<Answers::iterator>& answers, const std::vector<int32_t>& tokens,
                 const std::vector<std::vector<float>>& rows, double seconds) {
    Count([](EngineStats* stats) { ++stats->decode_steps; });
    for (size_t i = 0; i < answers.size(); ++i) {
      const auto token = tokens.begin() + static_cast<std::ptrdiff_t>(i);
      room_.Computed((*answers[i])->sequence(), token, token + 1);
    }
    for (size_t i = 0; i < answers.size(); ++i) {
      (*answers[i])->Decoded(seconds);
      Next(answers[i], rows[i]);
    }
  }

  // Guesses the next tokens of an answer and lets the model read them, so that it gives the logits
  // after each. Tokens are chosen as ever: a guess saves a call if it is the token that is chosen.
  // Returns false if there is nothing to guess.
  bool Guess(Answers::iterator running) {
    if (limits_.lookup == Lookup::kOff || !model_->verifies()) return false;
    const bool measures = limits_.lookup == Lookup::kWhereItGains;
    if (measures && (pace_.decode_seconds() == 0 || !gain_.Tries())) return false;
    Answer& answer = **running;
    std::vector<int32_t> tokens = answer.Guess(std::min(model_->scored(), pace_.Rows(true)) - 1);
    if (tokens.empty()) return false;
    const int64_t sequence = answer.sequence(), guessed = std::ssize(tokens);
    const int64_t before = model_->length(sequence);
    if (model_->recurrent() && !room_.Keep(sequence)) return false;
    tokens.insert(tokens.begin(), answer.last());
    const auto start = Clock::now();
    const auto rows = model_->PrefillRows(sequence, tokens);
    const double seconds = SecondsSince(start);
    pace_.Read(guessed + 1, seconds);
    answer.Decoded(seconds);
    Chosen chosen;
    int64_t right = 0;
    for (;; ++right) {
      chosen = Choose(&answer, rows[static_cast<size_t>(right)]);
      if (chosen.finish || right == guessed) break;
      if (answer.last() != tokens[static_cast<size_t>(right) + 1]) break;
    }
    answer.Verified(guessed, right);
    if (right < guessed)
      DropGuesses(sequence, {tokens.begin(), tokens.begin() + right + 1}, guessed);
    model_->ForgetCheckpoints(sequence, before);
    const double whole = SecondsSince(start);
    gain_.Verified(whole, right + 1, pace_.decode_seconds());
    room_.Computed(sequence, tokens.begin(), tokens.begin() + right + 1);
    Count([&](EngineStats* stats) {
      stats->decode_seconds += whole;
      ++stats->decode_steps;
      stats->guessed_tokens += guessed;
      stats->right_tokens += right;
    });
    if (chosen.finish) Leave(running, *chosen.finish, chosen.error);
    return true;
  }

  // Forgets wrong guesses, of which a call has read the first `right` tokens and the rest. Recurrent
  // states cannot be cut: they go back to the checkpoint before the call, and read `right` again.
  void DropGuesses(int64_t sequence, const std::vector<int32_t>& right, int64_t guessed) {
    if (!model_->recurrent()) {
      model_->Drop(sequence, guessed + 1 - std::ssize(right));
      return;
    }
    model_->Drop(sequence, guessed + 1);
    model_->Prefill(sequence, right);
  }

  // How an answer ends with the token that was chosen, if it does.
  struct Chosen {
    std::optional<Finish> finish;
    std::string error;
  };

  Chosen Choose(Answer* answer, const std::vector<float>& logits) {
    Chosen chosen;
    try {
      chosen.finish = answer->Next(logits);
    } catch (const std::exception& thrown) {
      chosen = {Finish::kError, thrown.what()};
    }
    Count([](EngineStats* stats) { ++stats->answer_tokens; });
    return chosen;
  }

  // Chooses a token of an answer, which may end it.
  void Next(Answers::iterator answer, const std::vector<float>& logits) {
    const Chosen chosen = Choose(answer->get(), logits);
    if (chosen.finish) Leave(answer, *chosen.finish, chosen.error);
  }

  // Ends a running answer.
  void Leave(Answers::iterator answer, Finish finish, const std::string& error = "") {
    std::unique_ptr<Answer> ended = std::move(*answer);
    running_.erase(answer);
    End(std::move(ended), finish, error);
  }

  void End(std::unique_ptr<Answer> answer, Finish finish, const std::string& error = "") {
    if (answer->started()) room_.Release(answer->sequence());
    Count([&](EngineStats* stats) {
      live_.erase(answer->id());
      ++stats->requests;
      stats->cancelled += finish == Finish::kCancelled;
      stats->failed += finish == Finish::kError;
    });
    Publish();
    answer->End(finish, error);
  }

  void FailAll(const std::string& error) {
    room_.Clear();
    Answers all;
    all.swap(running_);
    for (auto& answer : all) {
      answer->Lose();
      End(std::move(answer), Finish::kError, error);
    }
  }

  // Changes the statistics under the lock.
  template <typename Change>
  void Count(const Change& change) {
    const std::lock_guard lock(mutex_);
    change(&stats_);
  }

  // Updates the statistics of batch and cache: once in each step, and when an answer ends.
  void Publish() {
    const int64_t used = room_.pages_used(), running = room_.pages_running();
    Count([&](EngineStats* stats) {
      stats->running = std::ssize(running_);
      stats->kept = room_.kept();
      stats->pages_used = used;
      stats->pages_running = running;
    });
  }

  Model* model_;
  const Tokenizer* tokenizer_;
  const int64_t vocabulary_;
  const EngineLimits limits_;

  // Used only by the engine's thread.
  CacheRoom room_;
  Answers running_;
  Pace pace_;
  LookupGain gain_;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable wake_;
  Answers waiting_;
  std::set<uint64_t> live_;
  std::set<uint64_t> cancelled_;
  EngineStats stats_;
  uint64_t next_ = 1;
  bool stop_ = false;
};

Engine::Engine(Model* model, const Tokenizer* tokenizer, int64_t vocabulary,
               const EngineLimits& limits, PromptFiles* files)
    : limits_(limits),
      state_(std::make_unique<State>(model, tokenizer, vocabulary, limits, files)) {}

Engine::~Engine() = default;

uint64_t Engine::Submit(Request request) { return state_->Submit(std::move(request)); }
void Engine::Cancel(uint64_t id) { state_->Cancel(id); }
bool Engine::Step() { return state_->Step(); }
bool Engine::Store() { return state_->Store(); }
bool Engine::Wait(double seconds) { return state_->Wait(seconds); }
void Engine::Stop() { state_->Stop(); }
EngineStats Engine::Stats() const { return state_->Stats(); }

}  // namespace rvv_runner
