// SPDX-License-Identifier: Apache-2.0
#include "server/answering.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

namespace rvv_runner {

// The longest answer bounds its size, so the answerer never has to wait for a slow reader.
class Answers::Mailbox {
 public:
  void Put(AnswerEvent event) {
    {
      const std::lock_guard guard(mutex_);
      events_.push_back(std::move(event));
    }
    filled_.notify_one();
  }

  std::optional<AnswerEvent> Take(double seconds) {
    std::unique_lock lock(mutex_);
    const std::chrono::duration<double> most(seconds);
    if (!filled_.wait_for(lock, most, [&] { return !events_.empty(); })) return std::nullopt;
    AnswerEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<AnswerEvent> events_;
};

Answers::Answers(Answerer* answerer, std::vector<Request> requests,
                 std::unique_ptr<AnswerCheck> check)
    : answerer_(answerer),
      check_(std::move(check)),
      mailbox_(std::make_shared<Mailbox>()),
      left_(requests.size()) {
  try {
    for (size_t i = 0; i < requests.size(); ++i) {
      Request& request = requests[i];
      // The mailbox outlives this object for as long as the answerer may call back.
      request.on_piece = [box = mailbox_, i](const Piece& piece) { box->Put({i, piece, {}, {}}); };
      request.on_finish = [box = mailbox_, i](const Ended& ended) { box->Put({i, {}, ended, {}}); };
      ids_.push_back(answerer_->Submit(std::move(request)));
    }
  } catch (...) {
    for (const uint64_t id : ids_) answerer_->Cancel(id);
    throw;
  }
}

Answers::~Answers() {
  if (done()) return;
  for (const uint64_t id : ids_) answerer_->Cancel(id);
}

std::optional<AnswerEvent> Answers::Next(double seconds) {
  std::optional<AnswerEvent> event = mailbox_->Take(seconds);
  if (event && event->ended) --left_;
  if (event && check_) Check(&*event);
  return event;
}

void Answers::Check(AnswerEvent* event) {
  if (!event->ended) return check_->Next(event->answer, event->piece.text);
  const bool whole = event->ended->finish == Finish::kStop && !event->ended->cut;
  if (whole) event->fault = check_->Fault(event->answer);
}

}  // namespace rvv_runner
