// SPDX-License-Identifier: Apache-2.0
#include "server/event_stream.h"

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "input/json.h"
#include "input/log.h"

namespace rvv_runner {
namespace {

constexpr double kTickSeconds = 0.1;  // between checks of a silent client
constexpr double kQuietSeconds = 10;  // until a stream sends a sign of life

bool Failed(const AnswerEvent& event) {
  if (!event.ended) return false;
  const Finish finish = event.ended->finish;
  return finish == Finish::kCancelled || finish == Finish::kError || !event.fault.empty();
}

// The error for the client of an answer that did not end normally.
ApiError Failure(const AnswerEvent& event) {
  const Ended& ended = *event.ended;
  if (ended.finish == Finish::kCancelled) return StoppingError();
  if (!event.fault.empty()) {
    Log(LogLevel::kError, "an answer does not match the schema that its grammar was made of");
    return ApiError(500, "the answer does not match its schema: " + event.fault);
  }
  // The engine's message may hold internals that clients must not see.
  Log(LogLevel::kError, "an answer failed: " + ended.error);
  return ApiError(500, "the model failed");
}

// One stream of server-sent events.
class EventStream {
 public:
  EventStream(std::unique_ptr<AnswerWriter> writer, std::unique_ptr<Answers> answers)
      : writer_(std::move(writer)), framing_(writer_->framing()), answers_(std::move(answers)) {
    NoteAll(writer_->Begin());
  }

  // Writes what is ready. Returns false when the client is gone.
  bool Write(httplib::DataSink& sink) {
    if (pending_.empty()) Await();
    if (!sink.is_writable()) return false;
    const std::string text = std::exchange(pending_, "");
    if (!text.empty() && !sink.write(text.data(), text.size())) return false;
    if (over_) sink.done();
    return true;
  }

  // Ends the stream.
  void Break(const ApiError& error) {
    Note(writer_->Failed(error));
    Close();
  }

 private:
  void Note(const OrderedJson& event) {
    if (framing_ == Framing::kLines) {
      pending_ += WrittenInOrder(event) + "\n";
      return;
    }
    // Events of /v1/responses have types.
    if (event.contains("type")) pending_ += "event: " + event["type"].get<std::string>() + "\n";
    pending_ += "data: " + WrittenInOrder(event) + "\n\n";
  }

  void NoteAll(const AnswerWriter::Events& events) {
    for (const OrderedJson& event : events) Note(event);
  }

  void Close() {
    if (framing_ == Framing::kMarkedEvents) pending_ += "data: [DONE]\n\n";
    over_ = true;
  }

  void Await() {
    const auto event = answers_->Next(kTickSeconds);
    quiet_ = event ? 0 : quiet_ + kTickSeconds;
    if (quiet_ >= kQuietSeconds) {
      // A blank before a JSON text means nothing.
      pending_ = framing_ == Framing::kLines ? " " : ": the answer goes on\n\n";
      quiet_ = 0;
    }
    if (!event) return;
    if (!event->ended) return NoteAll(writer_->Next(event->answer, event->piece));
    if (Failed(*event)) return Break(Failure(*event));
    NoteAll(writer_->End(event->answer, *event->ended));
    if (!answers_->done()) return;
    NoteAll(writer_->Finish());
    Close();
  }

  std::unique_ptr<AnswerWriter> writer_;
  Framing framing_;
  std::unique_ptr<Answers> answers_;
  bool over_ = false;
  double quiet_ = 0;
  std::string pending_;
};

}  // namespace

ApiError StoppingError() { return ApiError(kServerStopping, "the server is stopping"); }

void Stopping::Begin(std::chrono::milliseconds most) {
  begun_ = true;
  const auto end = std::chrono::steady_clock::now() + most;
  while (open_ > 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

std::shared_ptr<void> Stopping::Open() {
  ++open_;
  return {this, [](Stopping* stopping) { --stopping->open_; }};
}

void SetStream(const std::string& type, const httplib::Request& request,
               httplib::Response& response, const httplib::ContentProviderWithoutLength& provide) {
  if (request.version == "HTTP/1.0") {  // which has no chunks
    response.set_header("Connection", "close");
    response.set_content_provider(type, provide);
  } else {
    response.set_chunked_content_provider(type, provide);
  }
}

void SendStream(std::unique_ptr<AnswerWriter> writer, std::unique_ptr<Answers> answers,
                const Stopping& stopping, std::shared_ptr<void> open,
                const httplib::Request& request, httplib::Response& response) {
  const bool lines = writer->framing() == Framing::kLines;
  const char* type = lines ? "application/x-ndjson" : "text/event-stream";
  const auto stream = std::make_shared<EventStream>(std::move(writer), std::move(answers));
  const auto provide = [stream, open, &stopping](size_t, httplib::DataSink& sink) {
    if (stopping) stream->Break(StoppingError());
    return stream->Write(sink);
  };
  response.set_header("Cache-Control", "no-cache");
  response.set_header("X-Accel-Buffering", "no");
  SetStream(type, request, response, provide);
}

void AwaitAll(Answers* answers, const Stopping& stopping, const httplib::Request& request,
              const std::function<void(const AnswerEvent&)>& take) {
  using Clock = std::chrono::steady_clock;
  auto looked = Clock::now();
  while (!answers->done()) {
    const auto event = answers->Next(kTickSeconds);
    if (stopping) throw StoppingError();
    if (Clock::now() - looked >= std::chrono::duration<double>(kTickSeconds)) {
      if (request.is_connection_closed()) throw ApiError(400, "the client closed the connection");
      looked = Clock::now();
    }
    if (!event) continue;
    if (Failed(*event)) throw Failure(*event);
    take(*event);
  }
}

}  // namespace rvv_runner
