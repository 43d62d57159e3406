// SPDX-License-Identifier: Apache-2.0
#include "server/http_server.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <utility>

#include "api/api_answer.h"
#include "api/api_error.h"
#include "api/description.h"
#include "api/ollama_request.h"
#include "api/ollama_writer.h"
#include "chat_page.h"
#include "input/errors.h"
#include "input/json.h"
#include "input/log.h"
#include "server/connection.h"
#include "server/thread_pool.h"

namespace rvv_runner {
namespace {

constexpr std::chrono::milliseconds kIdleTime{5000};  // between two requests
constexpr std::chrono::milliseconds kStopTime{1000};  // for clients to read how streams end
constexpr int kMostRequests = 1000;                   // of one connection

// Errors of Ollama's paths have its form.
void SendError(const ApiError& error, const httplib::Request& request,
               httplib::Response& response) {
  Log(LogLevel::kDebug,
      "refused with " + std::to_string(error.status()) + ": " + Loggable(error.what()));
  response.status = error.status();
  if (error.status() == 429 || error.status() == 503) response.set_header("Retry-After", "1");
  Send(response, IsOllama(request.path) ? OllamaError(error) : ErrorBody(error));
}

ApiError TooLarge() {
  return ApiError(413, "the body has more than " + std::to_string(kMostBody) + " bytes");
}

// Errors that httplib detects have no body.
void ExplainError(const httplib::Request& request, httplib::Response& response) {
  if (!response.body.empty()) return;
  const int status = response.status;
  if (status == 413) return SendError(TooLarge(), request, response);
  SendError(ApiError(status, std::string("HTTP: ") + httplib::status_message(status)), request,
            response);
}

void ExplainException(const httplib::Request& request, httplib::Response& response,
                      std::exception_ptr thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const ApiError& error) {
    SendError(error, request, response);
  } catch (const std::exception& error) {
    // Its message may hold internals that clients must not see.
    Log(LogLevel::kError, std::string("a request failed: ") + Loggable(error.what()));
    SendError(ApiError(500, "the server failed"), request, response);
  }
}

// Only numeric addresses: a static program has no resolver for names.
int Family(const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  for (const int family : {AF_INET, AF_INET6}) {
    if (inet_pton(family, host.c_str(), bytes) == 1) return family;
  }
  throw InputError("--host: '" + host +
                   "' is not an address; use 127.0.0.1 for this machine only, " +
                   "0.0.0.0 for every network it is in");
}

// Addresses that only programs of this machine can reach, in any spelling.
bool IsLoopback(const std::string& host) {
  in6_addr six;
  if (inet_pton(AF_INET6, host.c_str(), &six) != 1) return host.starts_with("127.");
  return IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 127);
}

std::string Lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// The name of a Host header in lower case, without its port.
std::string HostName(const std::string& host) {
  const size_t bracket = host.find(']');
  return Lower(host.substr(0, host.find(':', bracket == std::string::npos ? 0 : bracket)));
}

// A request for http://HOST/PATH is one for /PATH of this host, whatever its header Host says (RFC
// 9112, 3.2.2).
void ReadAbsoluteForm(httplib::Request* request) {
  constexpr std::string_view kScheme = "http://";
  std::string& path = request->path;
  if (!Lower(path.substr(0, kScheme.size())).starts_with(kScheme)) return;
  const size_t slash = std::min(path.find('/', kScheme.size()), path.size());
  request->headers.erase("Host");
  request->set_header("Host", path.substr(kScheme.size(), slash - kScheme.size()));
  path = slash == path.size() ? "/" : path.substr(slash);
}

// Matches as httplib does: a parameter (/v1/models/:model) is one part of the path.
bool Matches(const std::string& route, const std::string& path) {
  const size_t colon = route.find(':');
  if (colon == std::string::npos) return route == path;
  return path.size() > colon && path.compare(0, colon, route, 0, colon) == 0 &&
         path.find('/', colon) == std::string::npos;
}

// True if a page may have sent the request: browsers send one of these headers with each POST.
bool IsOfBrowser(const httplib::Request& request) {
  return request.has_header("Origin") || request.has_header("Sec-Fetch-Site") ||
         request.has_header("Referer");
}

}  // namespace

HttpServer::HttpServer(const ServerOptions& options) : options_(options), keys_(options.keys) {
  if (options_.host == "localhost") options_.host = "127.0.0.1";
  set_address_family(Family(options_.host));
  // httplib's default, SO_REUSEPORT, lets two servers share a port: each gets half of the requests.
  set_socket_options(
      [](socket_t sock) { httplib::set_socket_opt(sock, SOL_SOCKET, SO_REUSEADDR, 1); });
  loopback_ = IsLoopback(options_.host);
  if (loopback_ || !keys_.empty()) return;
  throw InputError("--host " + options_.host + " needs --api-key-file FILE: without a key, every " +
                   "machine and every web page in its networks could use the server");
}

// The paths that do not depend on a model.
void HttpServer::OfferCommon() {
  AddGet("/", [](const httplib::Request&, httplib::Response& response) {
    response.set_header("Content-Security-Policy", kChatPolicy);
    response.set_header("Referrer-Policy", "no-referrer");
    response.set_content(kChatPage, sizeof(kChatPage) - 1, "text/html; charset=utf-8");
  });
  AddGet("/openapi.json", [](const httplib::Request&, httplib::Response& response) {
    response.set_content(WrittenInOrder(OpenApi()), "application/json");
  });
  AddGet("/api/version", [](const httplib::Request&, httplib::Response& response) {
    Send(response, {{"version", kOllamaVersion}});
  });
}

void HttpServer::Offer(Router* router) {
  OfferCommon();
  for (const PathAbout& about : ApiPaths()) {
    const std::string& path = about.path;
    if (std::ranges::find(routes_, path, &Route::path) != routes_.end()) continue;
    if (about.method == "GET") {
      AddGet(path, [=](const auto& q, auto& r) { router->Get(path, q, r); });
    } else {
      AddPost(path, [=](const auto& q, size_t, Body* b, auto& r) { router->Post(q, b, r); });
    }
  }
  Prepare(router);
}

void HttpServer::Offer(Endpoints* endpoints) {
  OfferCommon();
  AddGet("/health", [=](const auto& q, auto& r) { endpoints->Health(q, r); });
  AddGet("/metrics", [=](const auto& q, auto& r) { endpoints->Numbers(q, r); });
  AddGet("/tokenizer_info", [=](const auto& q, auto& r) { endpoints->TokenizerInfo(q, r); });
  AddGet("/v1/models", [=](const auto& q, auto& r) { endpoints->Models(q, r); });
  AddGet("/v1/models/:model", [=](const auto& q, auto& r) { endpoints->Model(q, r); });
  const auto complete = [=](ApiKind kind) {
    return
        [=](const auto& q, size_t o, Body* b, auto& r) { endpoints->Complete(kind, q, o, b, r); };
  };
  AddPost("/v1/chat/completions", complete(ApiKind::kChat));
  AddPost("/v1/completions", complete(ApiKind::kText));
  AddPost("/v1/responses",
          [=](const auto& q, size_t o, Body* b, auto& r) { endpoints->Respond(q, o, b, r); });
  AddPost("/v1/embeddings",
          [=](const auto& q, size_t o, Body* b, auto& r) { endpoints->Embed(q, o, b, r); });
  for (const bool chat : {true, false}) {
    AddPost(chat ? "/api/chat" : "/api/generate", [=](const auto& q, size_t o, Body* b, auto& r) {
      endpoints->OllamaAnswer(chat, q, o, b, r);
    });
  }
  for (const bool older : {true, false}) {
    AddPost(older ? "/api/embeddings" : "/api/embed",
            [=](const auto& q, size_t o, Body* b, auto& r) {
              endpoints->OllamaEmbed(older, q, o, b, r);
            });
  }
  AddPost("/api/show", [=](const auto&, size_t, Body* b, auto& r) { endpoints->OllamaShow(b, r); });
  AddGet("/api/tags", [=](const auto&, auto& r) { endpoints->OllamaModels(false, r); });
  AddGet("/api/ps", [=](const auto&, auto& r) { endpoints->OllamaModels(true, r); });
  AddPost("/tokenize", [=](const auto&, size_t, Body* b, auto& r) { endpoints->Tokenize(b, r); });
  AddPost("/detokenize",
          [=](const auto&, size_t, Body* b, auto& r) { endpoints->Detokenize(b, r); });
  Prepare(endpoints);
}

template <typename Answering>
void HttpServer::Prepare(Answering* answering) {
  metrics_ = &answering->metrics();
  bodies_ = &answering->bodies();
  end_answers_ = [=](std::chrono::milliseconds most) { answering->Stop(most); };
  set_pre_routing_handler([this](const auto& q, auto& r) { return Guard(q, r); });
  set_error_handler([](const auto& q, auto& r) { ExplainError(q, r); });
  set_exception_handler(ExplainException);
  set_logger([this](const httplib::Request& q, const httplib::Response& r) {
    const bool known = std::any_of(routes_.begin(), routes_.end(),
                                   [&](const Route& route) { return route.path == q.path; });
    metrics_->Count(known ? q.path : "other", r.status);
    LogRequest(q, r);
  });
  set_payload_max_length(kMostBody);
  set_tcp_nodelay(true);
  set_write_timeout(10);
  httplib::Headers headers = {{"X-Content-Type-Options", "nosniff"}};
  if (!options_.cors.empty()) {
    headers.emplace("Access-Control-Allow-Origin", options_.cors);
    headers.emplace("Access-Control-Expose-Headers",
                    "Retry-After, X-Checked-Fields, X-Dropped-Bytes, X-Ignored-Fields");
    headers.emplace("Vary", "Origin");
  }
  set_default_headers(headers);
  const size_t most = options_.connections;
  new_task_queue = [this, most] { return new ThreadPool(most, &waiting_); };
}

void HttpServer::AddRoute(const std::string& method, const std::string& path) {
  const auto& paths = ApiPaths();
  const auto about = std::ranges::find_if(
      paths, [&](const PathAbout& one) { return one.method == method && one.path == path; });
  if (about == paths.end()) throw std::logic_error(method + " " + path + " has no description");
  routes_.push_back({method, path, about->open});
}

void HttpServer::AddGet(const std::string& path, const Handler& handler) {
  AddRoute("GET", path);
  Get(path, handler);
}

void HttpServer::AddPost(const std::string& path, const BodyHandler& handler) {
  AddRoute("POST", path);
  Post(path, [this, handler](const httplib::Request& request, httplib::Response& response,
                             const httplib::ContentReader& reader) {
    Body body(bodies_);
    if (!body.Read(request, reader)) {
      if (response.status == 413) throw TooLarge();
      throw ApiError(400, "the body is not complete");
    }
    handler(request, KeyOf(request).value_or(0), &body, response);
  });
}

int HttpServer::Bind() {
  if (options_.port == 0) {
    options_.port = bind_to_any_port(options_.host);
    if (options_.port <= 0) throw InputError("no port of " + options_.host + " is free");
  } else if (!bind_to_port(options_.host, options_.port)) {
    throw InputError("cannot listen at " + address() + ": the port is in use or not permitted; " +
                     "choose another with --port");
  }
  return options_.port;
}

void HttpServer::Close() {
  // httplib cuts the streams that are open when it stops.
  end_answers_(kStopTime);
  stop();
}

// httplib calls it before it sends the answer: the time of a stream is that until it begins.
void HttpServer::LogRequest(const httplib::Request& request,
                            const httplib::Response& response) const {
  using std::chrono::milliseconds;
  const auto taken = std::chrono::steady_clock::now() - request.start_time_;
  const auto time = std::chrono::duration_cast<milliseconds>(taken).count();
  Log(response.status >= 500 ? LogLevel::kWarn : LogLevel::kInfo,
      request.remote_addr + " \"" + Loggable(request.method + " " + request.path) + "\" " +
          std::to_string(response.status) + " " + std::to_string(time) + " ms");
}

std::string HttpServer::address() const {
  const bool bare = options_.host.find(':') == std::string::npos;
  const std::string host = bare ? options_.host : "[" + options_.host + "]";
  return "http://" + host + ":" + std::to_string(options_.port);
}

bool HttpServer::Answer(httplib::Stream& stream) {
  bool closed = false;
  bool understood = false;
  std::string client;
  int port = 0;
  stream.get_remote_ip_and_port(client, port);
  const bool answered =
      process_request(stream, client, port, "", 0, false, closed, [&](httplib::Request& request) {
        understood = true;
        ReadAbsoluteForm(&request);
      });
  // The end of a request with a malformed head is unknown, so the next request cannot be found.
  return answered && !closed && understood;
}

bool HttpServer::process_and_close_socket(socket_t socket) {
  bool answered = true;
  const bool good = serve_guarded([&] {
    const auto hurried = [this] { return svr_sock_ == INVALID_SOCKET || waiting_ > 0; };
    const auto connection = std::make_unique<Connection>(socket, hurried);
    int count = 0;
    while (count < kMostRequests && connection->Await(kIdleTime)) {
      ++count;
      if (!Answer(*connection)) break;
    }
    answered = connection->answered();
    return true;
  });
  answered ? CloseGently(socket) : CloseNow(socket);
  return good;
}

const HttpServer::Route* HttpServer::Find(const httplib::Request& request,
                                          httplib::Response& response) const {
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  std::string allowed;
  for (const Route& route : routes_) {
    if (!Matches(route.path, request.path)) continue;
    if (route.method == method) return &route;
    allowed = route.method == "GET" ? "GET, HEAD" : route.method;
  }
  if (allowed.empty()) throw ApiError(404, "there is nothing at this path");
  response.set_header("Allow", allowed);
  throw ApiError(405, "this path accepts only " + allowed);
}

// Another site can make its host name point to this machine (DNS rebinding). Its pages must not use
// a server that asks for no key because only this machine reaches it.
void HttpServer::CheckHost(const httplib::Request& request) const {
  const size_t hosts = request.get_header_value_count("Host");
  if (hosts > 1 || (hosts == 0 && request.version != "HTTP/1.0")) {
    throw ApiError(400, "a request needs one header Host");  // RFC 9112, 3.2
  }
  if (!loopback_ || hosts == 0) return;
  const std::string host = HostName(request.get_header_value("Host"));
  const bool own = host == "localhost" || host == "127.0.0.1" || host == "[::1]" ||
                   host == options_.host || host == "[" + options_.host + "]";
  if (!own)
    throw ApiError(403, "this server accepts requests to its own machine only: use localhost");
}

std::optional<size_t> HttpServer::KeyOf(const httplib::Request& request) const {
  const std::string given = request.get_header_value("Authorization");
  // The scheme's case does not count, and blanks may follow it (RFC 9110, 11.1 and 11.4).
  const std::string scheme = "bearer ";
  const bool bearer = Lower(given.substr(0, scheme.size())) == scheme;
  const size_t begin = bearer ? given.find_first_not_of(' ', scheme.size()) : std::string::npos;
  const std::string key = begin == std::string::npos ? "" : given.substr(begin);
  return keys_.Find(key);
}

void HttpServer::CheckKey(const httplib::Request& request, httplib::Response& response) const {
  if (keys_.empty() || KeyOf(request)) return;
  response.set_header("WWW-Authenticate", "Bearer");
  throw ApiError(kNoKey, "this server needs a key: send the header Authorization: Bearer KEY");
}

// Refuses a page's HTML forms, which any site may send without a preflight, and compressed bodies,
// whose size is unknown in advance. Other programs may leave out the type, as `curl -d` does.
void HttpServer::CheckBody(const httplib::Request& request, httplib::Response& response) const {
  const std::string coding = request.get_header_value("Transfer-Encoding");
  if (!coding.empty() && Lower(coding) != "chunked") {
    response.set_header("Connection", "close");  // the body cannot be read, nor skipped
    throw ApiError(501, "the transfer coding '" + coding + "' is not known: use chunked");
  }
  if (request.method != "POST") return;
  if (coding.empty() && !request.has_header("Content-Length")) {
    response.set_header("Connection", "close");  // its end would be that of the connection
    throw ApiError(411, "the length of the body is missing: send the header Content-Length");
  }
  std::string type = request.get_header_value("Content-Type");
  type = Lower(type.substr(0, type.find_first_of("; ")));
  if (type != "application/json" && (IsOfBrowser(request) || type == "multipart/form-data")) {
    throw ApiError(415, "the body must be JSON: send the header Content-Type: application/json");
  }
  if (request.has_header("Content-Encoding")) {
    throw ApiError(415, "the body must not be compressed");
  }
  // httplib would read the whole body before it refused it.
  if (request.get_header_value_u64("Content-Length") > kMostBody) throw TooLarge();
}

void HttpServer::Preflight(const httplib::Request&, httplib::Response& response) const {
  response.status = 204;
  response.set_header("Access-Control-Allow-Methods", "GET, POST");
  // Clients in pages send headers of their own. "*" does not cover Authorization.
  response.set_header("Access-Control-Allow-Headers", "*, Authorization, Content-Type");
}

httplib::Server::HandlerResponse HttpServer::Guard(const httplib::Request& request,
                                                   httplib::Response& response) const {
  try {
    CheckHost(request);
    if (request.method == "OPTIONS" && !options_.cors.empty()) {
      Preflight(request, response);
      return HandlerResponse::Handled;
    }
    const Route* route = Find(request, response);
    if (!route->open) CheckKey(request, response);
    CheckBody(request, response);
    return HandlerResponse::Unhandled;
  } catch (const ApiError& error) {
    SendError(error, request, response);
    return HandlerResponse::Handled;
  }
}

}  // namespace rvv_runner
