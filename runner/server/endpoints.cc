// SPDX-License-Identifier: Apache-2.0
#include "server/endpoints.h"

#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <utility>

#include "api/api_answer.h"
#include "api/api_error.h"
#include "chat_page.h"
#include "input/errors.h"
#include "input/heap.h"
#include "input/json.h"
#include "input/log.h"

namespace rvv_runner {
namespace {

using nlohmann::json;

constexpr double kTick = 0.1;                    // seconds between checks of a silent client
constexpr double kQuietSeconds = 10;             // until a stream sends a sign of life
constexpr size_t kLargeBody = size_t{64} << 10;  // bytes; such bodies are read one at a time

int64_t Now() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(since).count();
}

std::string RandomHex() {
  std::random_device device;
  char text[17];
  std::snprintf(text, sizeof(text), "%08x%08x", device(), device());
  return text;
}

void Send(httplib::Response& response, const json& body) {
  response.set_content(Written(body), "application/json");
}

// The error for the client of an answer that did not end normally.
ApiError Failure(const Ended& ended) {
  if (ended.finish == Finish::kCancelled) return ApiError(503, "the server is stopping");
  // The engine's message may hold internals that clients must not see.
  Log(LogLevel::kError, "an answer failed: " + ended.error);
  return ApiError(500, "the model failed");
}

bool Failed(const Ended& ended) {
  return ended.finish == Finish::kCancelled || ended.finish == Finish::kError;
}

// Holds one of a semaphore's places.
class Turn {
 public:
  explicit Turn(std::counting_semaphore<>* places) : places_(places) { places_->acquire(); }
  ~Turn() { places_->release(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  std::counting_semaphore<>* places_;
};

// One stream of server-sent events.
class EventStream {
 public:
  EventStream(const ApiRequest& asked, AnswerWriter writer, std::unique_ptr<Answers> answers)
      : writer_(std::move(writer)), answers_(std::move(answers)), tail_(asked.include_usage) {
    for (size_t i = 0; i < asked.answers(); ++i) Note(writer_.First(i));
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
    Note(ErrorBody(error));
    Close();
  }

 private:
  void Note(const json& chunk) {
    if (!chunk.is_null()) pending_ += "data: " + Written(chunk) + "\n\n";
  }

  void NoteAll(const std::vector<json>& chunks) {
    for (const json& chunk : chunks) Note(chunk);
  }

  void Close() {
    pending_ += "data: [DONE]\n\n";
    over_ = true;
  }

  void Await() {
    const auto event = answers_->Next(kTick);
    quiet_ = event ? 0 : quiet_ + kTick;
    if (quiet_ >= kQuietSeconds) {
      pending_ = ": the answer goes on\n\n";
      quiet_ = 0;
    }
    if (!event) return;
    if (!event->ended) return NoteAll(writer_.Chunks(event->answer, event->piece));
    if (Failed(*event->ended)) return Break(Failure(*event->ended));
    NoteAll(writer_.Last(event->answer, *event->ended));
    if (!answers_->done()) return;
    if (tail_) Note(writer_.Tail());
    Close();
  }

  AnswerWriter writer_;
  std::unique_ptr<Answers> answers_;
  bool tail_;
  bool over_ = false;
  double quiet_ = 0;
  std::string pending_;
};

// The field that an error of the engine names before a colon, or that of the prompt.
std::string FieldOf(const std::string& message, bool chat) {
  const std::string field = message.substr(0, message.find(':'));
  const bool named = field.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == std::string::npos;
  return named ? field : chat ? "messages" : "prompt";
}

// Names for a header: of printable ASCII alone, and not too many.
std::string Listed(const std::vector<std::string>& names) {
  constexpr size_t kMost = 1000;
  std::string list;
  for (const std::string& name : names) {
    list += list.empty() ? "" : ", ";
    for (const char c : name) list += c > ' ' && c < 127 && c != ',' ? c : '?';
    if (list.size() > kMost) return list.substr(0, kMost) + "...";
  }
  return list;
}

void SendStream(std::shared_ptr<EventStream> stream, const std::atomic<bool>& stopping,
                const httplib::Request& request, httplib::Response& response) {
  const auto provide = [stream, &stopping](size_t, httplib::DataSink& sink) {
    if (stopping) stream->Break(ApiError(503, "the server is stopping"));
    return stream->Write(sink);
  };
  response.set_header("Cache-Control", "no-cache");
  response.set_header("X-Accel-Buffering", "no");
  if (request.version == "HTTP/1.0") {  // which has no chunks
    response.set_header("Connection", "close");
    response.set_content_provider("text/event-stream", provide);
  } else {
    response.set_chunked_content_provider("text/event-stream", provide);
  }
}

}  // namespace

Endpoints::Endpoints(Served served)
    : served_(std::move(served)), started_(Now()), prefix_(RandomHex()) {}

void Endpoints::Page(const httplib::Request&, httplib::Response& response) const {
  response.set_header("Content-Security-Policy", kChatPolicy);
  response.set_header("Referrer-Policy", "no-referrer");
  response.set_content(kChatPage, sizeof(kChatPage) - 1, "text/html; charset=utf-8");
}

void Endpoints::Health(const httplib::Request&, httplib::Response& response) const {
  if (!served_.answerer->Trouble().empty()) throw ApiError(503, "the model failed");
  Send(response, {{"status", "ok"}, {"model", served_.name}});
}

void Endpoints::Numbers(const httplib::Request&, httplib::Response& response) const {
  response.set_content(metrics_.Text(served_.answerer->Stats(), bodies_.held()),
                       "text/plain; version=0.0.4; charset=utf-8");
}

bool Endpoints::Named(const std::string& model) const {
  return model == served_.name || (served_.aliases != nullptr && served_.aliases->Find(model));
}

json Endpoints::About() const {
  return {{"id", served_.name},
          {"object", "model"},
          {"created", started_},
          {"owned_by", "mlc-rvv"},
          {"context_window", served_.context}};
}

void Endpoints::Models(const httplib::Request&, httplib::Response& response) const {
  Send(response, {{"object", "list"}, {"data", json::array({About()})}});
}

void Endpoints::Model(const httplib::Request& request, httplib::Response& response) const {
  const std::string& asked = request.path_params.at("model");
  if (!Named(asked)) {
    throw ApiError(404, "this server does not have that model; its model is " + served_.name,
                   "model", "model_not_found");
  }
  Send(response, About());
}

// What is made of a body (values, words, tokens) takes many times its size, and is dropped here.
Endpoints::Asked Endpoints::Read(bool chat, Body* body) {
  const bool large = body->text().size() > kLargeBody;
  const Turn turn(large ? &long_bodies_ : &short_bodies_);
  const TrimmedHeap trimmed(large);
  Asked asked;
  asked.api = ParseApiRequest(chat, body->text(), served_.defaults, served_.strict);
  body->Drop();
  const std::string& model = asked.api.model;
  if (!model.empty() && !Named(model)) {
    throw ApiError(404, "this server does not have that model; its model is " + served_.name,
                   "model", "model_not_found");
  }
  MakeRequests(&asked);
  return asked;
}

void Endpoints::MakeRequests(Asked* asked) const {
  const Tokenizer& tokenizer = *served_.tokenizer;
  const auto most = static_cast<size_t>(served_.context);
  std::vector<std::vector<int32_t>> prompts;
  const auto add = [&](Encoded encoded) {
    asked->dropped += encoded.dropped;
    prompts.push_back(std::move(encoded.ids));
  };
  ApiRequest& api = asked->api;
  if (api.chat) {
    asked->thoughts = Thoughts(api);
    add(EncodeChat(tokenizer, api.chat_input, "messages", most));
  }
  for (const ApiPrompt& prompt : api.prompts) {
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      add(EncodePrompt(tokenizer, *text, true, "prompt", most));
    } else {
      prompts.push_back(std::get<std::vector<int32_t>>(prompt));
    }
  }
  api.chat_input = {};
  api.prompts.resize(prompts.size());
  std::shared_ptr<const Grammar> grammar;
  if (api.schema) grammar = served_.grammars->OfSchema(*api.schema, kSchemaField);
  if (!api.tools.empty()) {
    const int64_t calls = api.parallel ? kMostCalls : 1;
    grammar = served_.grammars->OfCalls(api.tools, calls, !api.must_call);
  }
  for (const auto& prompt : prompts) {
    for (int64_t i = 0; i < api.n; ++i) {
      Request request;
      request.tokens = prompt;
      request.sampling = api.sampling;
      // Answers to the same prompt get different seeds, and the same seeds each time.
      if (request.sampling.seed) *request.sampling.seed += static_cast<uint64_t>(i);
      request.stop = tokenizer.stop();
      request.grammar = grammar;
      asked->requests.push_back(std::move(request));
    }
  }
}

AnswerParts::Thoughts Endpoints::Thoughts(const ApiRequest& asked) const {
  if (!asked.chat || !served_.tokenizer->chat().thinks()) return AnswerParts::Thoughts::kNone;
  const std::string prompt = served_.tokenizer->chat().Text(asked.chat_input);
  const bool begun = Stripped(prompt).ends_with("<think>");
  return begun ? AnswerParts::Thoughts::kBegun : AnswerParts::Thoughts::kMay;
}

void Endpoints::Complete(bool chat, const httplib::Request& request, size_t owner, Body* body,
                         httplib::Response& response) {
  Asked asked;
  std::unique_ptr<Answers> answers;
  try {
    asked = Read(chat, body);
    if (stopping_) throw ApiError(503, "the server is stopping");
    for (Request& one : asked.requests) one.owner = owner;
    answers = std::make_unique<Answers>(served_.answerer, std::move(asked.requests));
  } catch (const GrammarError& error) {
    throw ApiError(400, error.what(), error.field(), "unsupported_schema");
  } catch (const ContextError& error) {
    throw ApiError(400, error.what(), chat ? "messages" : "prompt", "context_length_exceeded");
  } catch (const InputError& error) {
    throw ApiError(400, error.what(), FieldOf(error.what(), chat));
  } catch (const QueueFull& error) {
    throw ApiError(429, error.what(), "", "queue_full");
  }
  // OpenAI's protocol has no field for it.
  if (asked.dropped > 0) response.set_header("X-Dropped-Bytes", std::to_string(asked.dropped));
  const std::string id =
      (chat ? "chatcmpl-" : "cmpl-") + prefix_ + std::to_string(answered_.fetch_add(1));
  if (!asked.api.ignored.empty()) {
    response.set_header("X-Ignored-Fields", Listed(asked.api.ignored));
  }
  AnswerWriter writer(asked.api, *served_.tokenizer, id, served_.name, Now(), asked.thoughts);
  if (asked.api.stream) {
    auto stream = std::make_shared<EventStream>(asked.api, std::move(writer), std::move(answers));
    return SendStream(std::move(stream), stopping_, request, response);
  }
  Whole(answers.get(), &writer, request);
  Send(response, writer.Body());
}

// Waits for all answers, or until the client is gone.
void Endpoints::Whole(Answers* answers, AnswerWriter* writer,
                      const httplib::Request& request) const {
  using Clock = std::chrono::steady_clock;
  auto looked = Clock::now();
  while (!answers->done()) {
    const auto event = answers->Next(kTick);
    if (stopping_) throw ApiError(503, "the server is stopping");
    if (Clock::now() - looked >= std::chrono::duration<double>(kTick)) {
      if (request.is_connection_closed()) throw ApiError(400, "the client closed the connection");
      looked = Clock::now();
    }
    if (!event) continue;
    if (!event->ended) {
      writer->Add(event->answer, event->piece);
    } else if (Failed(*event->ended)) {
      throw Failure(*event->ended);
    } else {
      writer->Add(event->answer, *event->ended);
    }
  }
}

}  // namespace rvv_runner
