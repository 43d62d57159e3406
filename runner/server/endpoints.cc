// SPDX-License-Identifier: Apache-2.0
#include "server/endpoints.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <utility>

#include "api/api_error.h"
#include "api/embedding_request.h"
#include "api/ollama_request.h"
#include "api/ollama_writer.h"
#include "api/response_request.h"
#include "api/response_writer.h"
#include "api/strict_json.h"
#include "api/token_request.h"
#include "input/heap.h"
#include "input/json.h"

namespace rvv_runner {
namespace {

constexpr size_t kTextsAtOnce = 8;

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

// What OpenAI's protocol has no field for.
void NoteHeaders(size_t dropped, const std::vector<std::string>& ignored,
                 httplib::Response& response) {
  if (dropped > 0) response.set_header("X-Dropped-Bytes", std::to_string(dropped));
  if (!ignored.empty()) response.set_header("X-Ignored-Fields", Listed(ignored));
}

OrderedJson TextsOf(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  OrderedJson texts = OrderedJson::array();
  for (const int32_t id : ids) texts.push_back(tokenizer.Visible(id));
  return texts;
}

// RFC 4648.
std::string Base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const std::string_view group = bytes.substr(at, 3);
    uint32_t bits = 0;
    for (size_t i = 0; i < 3; ++i) {
      bits = bits << 8 | (i < group.size() ? static_cast<unsigned char>(group[i]) : 0U);
    }
    for (size_t i = 0; i < 4; ++i) {
      text += i <= group.size() ? kDigits[bits >> (18 - 6 * i) & 63] : '=';
    }
  }
  return text;
}

// The first numbers of a vector, scaled to length 1; all of them for 0.
std::vector<float> Shortened(std::vector<float> vector, int64_t dimensions) {
  if (dimensions == 0) return vector;
  if (dimensions > std::ssize(vector)) {
    Refuse("dimensions",
           "must be at most " + std::to_string(vector.size()) + ", the width of the model");
  }
  vector.resize(static_cast<size_t>(dimensions));
  const double square = std::inner_product(vector.begin(), vector.end(), vector.begin(), 0.0);
  const double length = square > 0 ? std::sqrt(square) : 1.0;
  for (float& each : vector) each = static_cast<float>(each / length);
  return vector;
}

// A vector as OpenAI's protocol has it: a list, or little-endian float32 numbers in base64.
OrderedJson VectorOf(const std::vector<float>& vector, bool base64) {
  if (!base64) return vector;
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  const auto* bytes = reinterpret_cast<const char*>(vector.data());
  return Base64({bytes, vector.size() * sizeof(float)});
}

}  // namespace

Endpoints::Endpoints(Served served)
    : served_(std::move(served)), started_(Now()), prefix_(RandomHex()) {}

void Endpoints::Health(const httplib::Request&, httplib::Response& response) const {
  if (!served_.answerer->Trouble().empty()) throw ApiError(503, "the model failed");
  Send(response, {{"status", "ok"}, {"model", served_.name}});
}

void Endpoints::Numbers(const httplib::Request&, httplib::Response& response) const {
  const EngineStats stats = served_.answerer->Stats();
  response.set_content(metrics_.Text(&stats, bodies_.held()),
                       "text/plain; version=0.0.4; charset=utf-8");
}

OrderedJson Endpoints::About() const {
  return {{"id", served_.name},
          {"object", "model"},
          {"created", started_},
          {"owned_by", "mlc-rvv"},
          {"context_window", served_.context}};
}

void Endpoints::Models(const httplib::Request&, httplib::Response& response) const {
  Send(response, {{"object", "list"}, {"data", OrderedJson::array({About()})}});
}

void Endpoints::Model(const httplib::Request& request, httplib::Response& response) const {
  served_.CheckModel(request.path_params.at("model"));
  Send(response, About());
}

// What is made of a body (values, words, tokens) takes many times its size, and is dropped here.
template <typename Work>
auto Endpoints::Read(Body* body, const Work& work) {
  const bool large = body->text().size() > kLargeBody;
  const Turn turn(large ? &long_bodies_ : &short_bodies_);
  const TrimmedHeap trimmed(large);
  return work();
}

Asked Endpoints::RequestsFor(Body* body, ApiRequest api) const {
  body->Drop();
  served_.CheckIgnored(api.ignored);
  served_.CheckModel(api.model);
  served_.CheckAnswers(api.answers());
  const std::string input = api.input();
  return Explained(input, [&] { return RequestsOf(served_, std::move(api)); });
}

void Endpoints::Complete(ApiKind kind, const httplib::Request& request, size_t owner, Body* body,
                         httplib::Response& response) {
  Asked asked = Read(body, [&] {
    return RequestsFor(body, ParseApiRequest(kind, body->text(), served_.defaults));
  });
  auto writer = std::make_unique<CompletionWriter>(
      asked.api, *served_.tokenizer, NewName(asked.api.chat() ? "chatcmpl-" : "cmpl-"),
      asked.thoughts, std::move(asked.echoes));
  Answer(std::move(asked), owner, std::move(writer), request, response);
}

void Endpoints::Respond(const httplib::Request& request, size_t owner, Body* body,
                        httplib::Response& response) {
  OrderedJson repeated;
  Asked asked = Read(body, [&] {
    ResponseRequest parsed = ParseResponseRequest(body->text(), served_.defaults);
    repeated = std::move(parsed.repeated);
    return RequestsFor(body, std::move(parsed.api));
  });
  auto writer = std::make_unique<ResponseWriter>(asked.api, repeated, *served_.tokenizer,
                                                 NewName("resp_"), asked.thoughts);
  Answer(std::move(asked), owner, std::move(writer), request, response);
}

void Endpoints::Answer(Asked asked, size_t owner, std::unique_ptr<AnswerWriter> writer,
                       const httplib::Request& request, httplib::Response& response) {
  const auto open = stopping_.Open();
  if (stopping_) throw StoppingError();
  for (Request& one : asked.requests) one.owner = owner;
  auto answers = Explained(asked.api.input(), [&] {
    return std::make_unique<Answers>(served_.answerer, std::move(asked.requests),
                                     std::move(asked.check));
  });
  NoteHeaders(asked.dropped, asked.api.ignored, response);
  if (!asked.unguided.empty()) response.set_header("X-Checked-Fields", Listed(asked.unguided));
  if (asked.api.stream) {
    return SendStream(std::move(writer), std::move(answers), stopping_, open, request, response);
  }
  AwaitAll(answers.get(), stopping_, request, [&](const AnswerEvent& event) {
    event.ended ? writer->End(event.answer, *event.ended) : writer->Next(event.answer, event.piece);
  });
  writer->Finish();
  Send(response, writer->Body());
}

AnswerName Endpoints::NewName(const std::string& kind) {
  return {kind + prefix_ + std::to_string(answered_.fetch_add(1)), served_.name, Now()};
}

Endpoints::Vectors Endpoints::VectorsOf(const EmbeddingRequest& asked, const std::string& input,
                                        Body* body, const httplib::Request& request, size_t owner) {
  Vectors found;
  std::vector<Request> texts = Read(body, [&] {
    body->Drop();
    served_.CheckIgnored(asked.ignored);
    served_.CheckModel(asked.model);
    return Explained(input, [&] { return TextsFor(served_, asked, &found.dropped); });
  });
  found.vectors.resize(texts.size());
  // A few at once, which the engine may read in one call, so that others get their turn, and many
  // fit into the queue.
  const size_t most = std::min(kTextsAtOnce, served_.queue);
  for (size_t first = 0; first < texts.size(); first += most) {
    const size_t end = std::min(texts.size(), first + most);
    std::vector<Request> some;
    for (size_t i = first; i < end; ++i) {
      texts[i].owner = owner;
      some.push_back(std::move(texts[i]));
    }
    auto answers = Explained(
        input, [&] { return std::make_unique<Answers>(served_.answerer, std::move(some)); });
    AwaitAll(answers.get(), stopping_, request, [&](const AnswerEvent& event) {
      if (!event.ended) return;
      found.tokens += event.ended->prompt_tokens;
      found.vectors[first + event.answer] = Shortened(event.ended->embedding, asked.dimensions);
    });
  }
  return found;
}

void Endpoints::Embed(const httplib::Request& request, size_t owner, Body* body,
                      httplib::Response& response) {
  if (stopping_) throw StoppingError();
  const auto asked = Read(body, [&] { return ParseEmbeddingRequest(body->text()); });
  const Vectors found = VectorsOf(asked, "input", body, request, owner);
  OrderedJson data = OrderedJson::array();
  for (const auto& vector : found.vectors) {
    data.push_back({{"object", "embedding"},
                    {"index", data.size()},
                    {"embedding", VectorOf(vector, asked.base64)}});
  }
  NoteHeaders(found.dropped, asked.ignored, response);
  Send(response, {{"object", "list"},
                  {"model", served_.name},
                  {"data", std::move(data)},
                  {"usage", {{"prompt_tokens", found.tokens}, {"total_tokens", found.tokens}}}});
}

void Endpoints::OllamaAnswer(bool chat, const httplib::Request& request, size_t owner, Body* body,
                             httplib::Response& response) {
  std::unique_ptr<OllamaWriter> writer;
  Asked asked = Read(body, [&] {
    OllamaRequest parsed = chat ? ParseOllamaChat(body->text(), served_.defaults)
                                : ParseOllamaGenerate(body->text(), served_.defaults);
    Asked made;
    if (parsed.only_loads) {
      served_.CheckModel(parsed.api.model);
    } else {
      made = RequestsFor(body, std::move(parsed.api));
    }
    writer = std::make_unique<OllamaWriter>(made.api.form, chat, *served_.tokenizer, NewName(""),
                                            made.thoughts);
    return made;
  });
  if (asked.requests.empty()) return Send(response, writer->Loaded());
  Answer(std::move(asked), owner, std::move(writer), request, response);
}

void Endpoints::OllamaEmbed(bool older, const httplib::Request& request, size_t owner, Body* body,
                            httplib::Response& response) {
  if (stopping_) throw StoppingError();
  const auto begun = std::chrono::steady_clock::now();
  const auto asked = Read(body, [&] {
    EmbeddingRequest parsed;
    const auto& fields = older ? OllamaEmbeddingFields() : OllamaEmbedFields();
    parsed.ignored = fields.Read(ParseBody(body->text()), body->text(), &parsed);
    return parsed;
  });
  const Vectors found = VectorsOf(asked, older ? "prompt" : "input", body, request, owner);
  NoteHeaders(found.dropped, asked.ignored, response);
  if (older) return Send(response, {{"embedding", found.vectors.front()}});
  const auto taken = std::chrono::steady_clock::now() - begun;
  Send(response, {{"model", TaggedName(served_.name)},
                  {"embeddings", found.vectors},
                  {"total_duration", std::chrono::nanoseconds(taken).count()},
                  {"load_duration", 0},
                  {"prompt_eval_count", found.tokens}});
}

void Endpoints::OllamaModels(bool running, httplib::Response& response) const {
  OrderedJson model = OllamaModel(served_.name, served_.bytes, served_.digest);
  if (running) {
    // It is never unloaded.
    model.update({{"expires_at", kNever}, {"size_vram", 0}});
    model["context_length"] = served_.context;
  } else {
    model["modified_at"] = Rfc3339(started_);
  }
  Send(response, {{"models", OrderedJson::array({std::move(model)})}});
}

void Endpoints::OllamaShow(Body* body, httplib::Response& response) {
  Read(body, [&] {
    std::string name;
    served_.CheckIgnored(OllamaShowFields().Read(ParseBody(body->text()), body->text(), &name));
    served_.CheckModel(name);
  });
  OrderedJson capabilities = {served_.encodes ? "embedding" : "completion"};
  if (served_.tokenizer->calls()) capabilities.push_back("tools");
  const ChatTemplate& chat = served_.tokenizer->chat();
  if (chat.thinks() || chat.has_channels()) capabilities.push_back("thinking");
  if (served_.pictures != nullptr) capabilities.push_back("vision");
  Send(response,
       {{"modified_at", Rfc3339(started_)},
        {"template", ""},
        {"parameters", ""},
        {"details", OllamaModel("", 0, "")["details"]},
        {"model_info",
         {{"general.architecture", "mlc-rvv"}, {"mlc-rvv.context_length", served_.context}}},
        {"capabilities", capabilities}});
}

void Endpoints::Tokenize(Body* body, httplib::Response& response) {
  Read(body, [&] {
    const TokenizeRequest request = ParseTokenize(body->text());
    served_.CheckIgnored(request.ignored);
    served_.CheckModel(request.model);
    const Tokenizer& tokenizer = *served_.tokenizer;
    std::vector<PromptPicture> pictures;
    const Encoded encoded = Explained(request.text ? "prompt" : "messages", [&] {
      return request.text ? tokenizer.Encode(*request.text, kMostValues)
                          : EncodeShown(served_, request.chat, "messages", kMostValues, &pictures);
    });
    std::vector<int32_t> ids = encoded.ids;
    if (request.text && request.first_tokens) {
      ids.insert(ids.begin(), tokenizer.first().begin(), tokenizer.first().end());
      ids.insert(ids.end(), tokenizer.last().begin(), tokenizer.last().end());
    }
    OrderedJson answer = {
        {"count", ids.size()}, {"max_model_len", served_.context}, {"tokens", ids}};
    answer["token_strs"] = request.texts ? TextsOf(tokenizer, ids) : OrderedJson();
    NoteHeaders(encoded.dropped, request.ignored, response);
    Send(response, answer);
  });
}

void Endpoints::Detokenize(Body* body, httplib::Response& response) {
  Read(body, [&] {
    const DetokenizeRequest request = ParseDetokenize(body->text());
    served_.CheckIgnored(request.ignored);
    served_.CheckModel(request.model);
    for (const int32_t id : request.tokens) {
      if (static_cast<size_t>(id) < served_.tokenizer->size()) continue;
      Refuse("tokens", "the tokenizer has no token " + std::to_string(id));
    }
    NoteHeaders(0, request.ignored, response);
    Send(response, {{"prompt", TextOf(*served_.tokenizer, request.tokens)}});
  });
}

void Endpoints::TokenizerInfo(const httplib::Request&, httplib::Response& response) const {
  const Tokenizer& tokenizer = *served_.tokenizer;
  const auto name = [&](const std::vector<int32_t>& ids) {
    return ids.empty() ? OrderedJson() : OrderedJson(tokenizer.Visible(ids.front()));
  };
  Send(response, {{"bos_token", name(tokenizer.first())},
                  {"eos_token", name(tokenizer.stop())},
                  {"max_model_len", served_.context},
                  {"vocab_size", tokenizer.size()}});
}

}  // namespace rvv_runner
