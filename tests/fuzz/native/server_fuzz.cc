// SPDX-License-Identifier: Apache-2.0
// The server under libFuzzer: bytes of a connection in, an answer out, on a scripted answerer.
// RUNNER_FUZZ names what is read: http (a connection), chat, completion, response, ollama-chat or
// ollama-generate (a body).
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "api/api_error.h"
#include "api/api_request.h"
#include "api/ollama_request.h"
#include "api/response_request.h"
#include "bounded_time.h"
#include "input/log.h"
#include "input/read_file.h"
#include "scripted_answerer.h"
#include "server/http_server.h"

using namespace rvv_runner;

namespace {

void Require(bool holds) {
  if (!holds) std::abort();
}

// A client that has sent all that it will, and takes whatever comes.
class Sent final : public httplib::Stream {
 public:
  explicit Sent(std::string_view data) : data_(data) {}
  bool is_readable() const override { return true; }
  bool wait_readable() const override { return true; }
  bool wait_writable() const override { return true; }
  bool is_peer_alive() const override { return true; }
  ssize_t read(char* target, size_t size) override {
    const size_t count = std::min(size, data_.size());
    std::memcpy(target, data_.data(), count);
    data_.remove_prefix(count);
    return static_cast<ssize_t>(count);
  }
  ssize_t write(const char* data, size_t size) override {
    answer_.append(data, size);
    return static_cast<ssize_t>(size);
  }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return INVALID_SOCKET; }
  time_t duration() const override { return 0; }

  const std::string& answer() const { return answer_; }

 private:
  std::string_view data_;
  std::string answer_;
};

// As if it listened: the library sends no streams else.
class Unbound final : public HttpServer {
 public:
  Unbound(const ServerOptions& options, Endpoints* endpoints) : HttpServer(options) {
    Offer(endpoints);
    svr_sock_ = INVALID_SOCKET - 1;
  }
  ~Unbound() override { svr_sock_ = INVALID_SOCKET; }
};

struct World {
  Tokenizer tokenizer{ParseTokenizerFile(ReadFile(std::getenv("RUNNER_FUZZ_TABLE")), "table")};
  ScriptedAnswerer answerer{tokenizer, 8, -1.0};
  GrammarCompiler grammars{tokenizer, static_cast<int64_t>(tokenizer.size())};
  Endpoints endpoints{{"model", &tokenizer, &answerer, &grammars, {}, 4096}};
  Unbound server{{}, &endpoints};
};

void FuzzConnection(std::string_view data) {
  SetLogLevel(LogLevel::kError);
  static World world;
  Sent client(data);
  for (int i = 0; i < 4 && world.server.Answer(client); ++i) {
  }
  Require(client.answer().empty() || client.answer().starts_with("HTTP/1.1 "));
}

ApiRequest Parsed(const std::string& target, std::string_view data) {
  if (target.starts_with("ollama")) {
    OllamaRequest request =
        target == "ollama-chat" ? ParseOllamaChat(data, {}) : ParseOllamaGenerate(data, {});
    if (request.only_loads) throw ApiError(400, "no answer is asked for");
    return std::move(request.api);
  }
  if (target == "response") return ParseResponseRequest(data, {}).api;
  return ParseApiRequest(target == "chat" ? ApiKind::kChat : ApiKind::kText, data, {});
}

void FuzzBody(const std::string& target, std::string_view data) {
  try {
    const ApiRequest request = Parsed(target, data);
    Require(request.chat() ? !request.chat_input.messages.empty() : !request.prompts.empty());
    Require(request.answers() >= 1 && request.answers() <= static_cast<size_t>(kMostAnswers));
    Require(request.sampling.top_logprobs >= -1 && request.sampling.top_logprobs <= 20);
    Require(request.sampling.max_tokens >= 0 && request.sampling.stop.size() <= kMostStops);
  } catch (const ApiError& error) {
    Require(error.status() == 400 && error.what()[0] != '\0');
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const std::string target = std::getenv("RUNNER_FUZZ");
  const std::string_view data(reinterpret_cast<const char*>(bytes), size);
  const BoundedTime bounded;
  if (target == "http") {
    FuzzConnection(data);
  } else {
    FuzzBody(target, data);
  }
  return 0;
}
