// SPDX-License-Identifier: Apache-2.0
#include "server/router.h"

#include <chrono>
#include <ctime>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "api/api_answer.h"
#include "api/api_error.h"
#include "api/ollama_request.h"
#include "api/ollama_writer.h"
#include "api/strict_json.h"
#include "api/values.h"
#include "server/event_stream.h"

namespace rvv_runner {
namespace {

constexpr time_t kConnect = 5;  // seconds
constexpr int kTries = 3;       // to get an answer
constexpr auto kEnding = std::chrono::milliseconds(250);
constexpr time_t kLongest = 24 * 60 * 60;  // seconds of an answer

ApiError ServerEnded(const std::string& model) {
  return ApiError(502, "the server of " + model + " has ended; try again");
}

}  // namespace

Router::Router(ModelServers* servers) : servers_(servers), started_(std::time(nullptr)) {}

size_t Router::Find(const std::string& name) {
  if (name.empty()) return last_;
  const auto& models = servers_->models();
  for (size_t i = 0; i < models.size(); ++i) {
    if (name == models[i].name || name == TaggedName(models[i].name)) return last_ = i;
  }
  throw ApiError(kNoModel, "model: this server does not have that model; /v1/models lists them",
                 "model");
}

void Router::Get(const std::string& path, const httplib::Request& request,
                 httplib::Response& response) {
  const auto about = [&](const StoredModel& model) -> OrderedJson {
    return {
        {"id", model.name}, {"object", "model"}, {"created", started_}, {"owned_by", "mlc-rvv"}};
  };
  if (path == "/health") {
    Send(response, {{"status", "ok"}, {"model", servers_->models()[last_].name}});
  } else if (path == "/metrics") {
    response.set_content(metrics_.Text(nullptr, bodies_.held()),
                         "text/plain; version=0.0.4; charset=utf-8");
  } else if (path == "/v1/models/:model") {
    Send(response, about(servers_->models()[Find(request.path_params.at("model"))]));
  } else if (path == "/v1/models") {
    OrderedJson list = OrderedJson::array();
    for (const StoredModel& model : servers_->models()) list.push_back(about(model));
    Send(response, {{"object", "list"}, {"data", std::move(list)}});
  } else if (path == "/api/tags" || path == "/api/ps") {
    OrderedJson list = OrderedJson::array();
    for (size_t i = 0; i < servers_->models().size(); ++i) {
      const StoredModel& model = servers_->models()[i];
      OrderedJson one = OllamaModel(model.name, model.bytes, model.digest);
      if (path == "/api/tags") {
        one["modified_at"] = Rfc3339(started_);
      } else {
        const ModelServers::Running state = servers_->StateOf(i);
        if (!state.runs) continue;
        const auto at = state.left ? Rfc3339(std::time(nullptr) + state.left->count()) : kNever;
        one.update({{"expires_at", at}, {"size_vram", 0}});
      }
      list.push_back(std::move(one));
    }
    Send(response, {{"models", std::move(list)}});
  } else {
    Forward(last_, request, "", {}, response);
  }
}

void Router::Post(const httplib::Request& request, Body* body, httplib::Response& response) {
  std::string name;
  ModelServers::Kept kept;
  {
    const Json parsed = ParseBody(body->text());
    const auto field = [&](const char* key) -> const Json* {
      const auto found = parsed.is_object() ? parsed.find(key) : parsed.end();
      return found == parsed.end() || found->is_null() ? nullptr : &*found;
    };
    const Json* model = field("model");
    if (model == nullptr && request.path == "/api/show") model = field("name");
    if (model != nullptr) name = ReadText("model", *model);
    const Json* time = IsOllama(request.path) ? field("keep_alive") : nullptr;
    if (time != nullptr) kept = ReadKeepAlive(*time);
  }
  const size_t found = Find(name);
  const std::string text = body->text();
  body->Drop();
  Forward(found, request, text, kept, response);
}

void Router::Forward(size_t model, const httplib::Request& request, const std::string& body,
                     ModelServers::Kept kept, httplib::Response& response) {
  const std::string& name = servers_->models()[model].name;
  httplib::Headers headers;
  for (const char* each : {"Authorization", "User-Agent"}) {
    if (request.has_header(each)) headers.emplace(each, request.get_header_value(each));
  }
  std::shared_ptr<ModelServers::Use> use;
  std::shared_ptr<httplib::Client> client;
  std::shared_ptr<httplib::ClientImpl::StreamHandle> stream;
  // A process that is ending still counts as running for a moment; it refuses or drops connections.
  for (int tries = 0; tries < kTries; ++tries) {
    const int before = use ? use->port() : 0;
    if (tries > 0) std::this_thread::sleep_for(kEnding);
    use = servers_->Acquire(model);
    if (use->port() == before && stream->error != httplib::Error::Connection) break;
    client = std::make_shared<httplib::Client>("127.0.0.1", use->port());
    client->set_connection_timeout(kConnect);
    client->set_read_timeout(kLongest);
    stream = std::make_shared<httplib::ClientImpl::StreamHandle>(
        client->open_stream(request.method == "HEAD" ? "GET" : request.method, request.path, {},
                            headers, body, body.empty() ? "" : "application/json"));
    if (stream->is_valid()) break;
  }
  use->Keep(kept);
  if (!stream->is_valid()) throw ServerEnded(name);
  response.status = stream->response->status;
  for (const auto& [key, value] : stream->response->headers) {
    if (key.starts_with("X-") || key == "Retry-After") response.set_header(key, value);
  }
  const std::string type = stream->response->get_header_value("Content-Type");
  const bool events = type == "text/event-stream" || type == "application/x-ndjson";
  const auto next = [=](std::string* to) {
    char bytes[16 << 10];
    const ssize_t count = stream->read(bytes, sizeof(bytes));
    if (count > 0) to->append(bytes, static_cast<size_t>(count));
    return count;
  };
  if (!events) {
    std::string all;
    ssize_t count = 1;
    while (count > 0) count = next(&all);
    if (count < 0) throw ServerEnded(name);
    response.set_content(all, type);
    return;
  }
  // A stream that is cut has no end, so that the client sees that it is not whole.
  SetStream(type, request, response, [=](size_t, httplib::DataSink& sink) {
    std::string part;
    const ssize_t count = next(&part);
    if (count == 0) sink.done();
    // These live as long as the stream.
    static_cast<void>(client);
    static_cast<void>(use);
    return count >= 0 && (count == 0 || sink.write(part.data(), part.size()));
  });
}

void Router::Stop(std::chrono::milliseconds most) {
  servers_->Close();
  std::this_thread::sleep_for(most);
}

}  // namespace rvv_runner
