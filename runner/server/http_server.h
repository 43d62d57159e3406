// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <httplib.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "server/accepted.h"
#include "server/body.h"
#include "server/endpoints.h"
#include "server/router.h"

namespace rvv_runner {

struct ServerOptions {
  std::string host = "127.0.0.1";  // a number, or localhost
  int port = 8000;                 // 0: any that is free
  std::vector<std::string> keys;   // one of which clients must send; empty: no key
  std::string cors;                // origin whose pages may send requests; empty: none
  size_t connections = 128;        // served at once; as many wait, further ones are closed
};

// The HTTP server before the endpoints. It checks host, key, method and path, and bounds bodies,
// headers, connections and time.
class HttpServer : public httplib::Server {
 public:
  // Throws InputError if the host is not an address, or if it lets in other machines without a key:
  // then a page of any site could use it through a browser of its network (DNS rebinding).
  explicit HttpServer(const ServerOptions& options);

  // Binds to the port and returns it. Clients that connect wait until Listen. Throws InputError if
  // the port is not available.
  int Bind();
  // Sets the endpoints of one model, or of several; one of them is called once, before Listen.
  // `endpoints` and `router` must outlive the server.
  void Offer(Endpoints* endpoints);
  void Offer(Router* router);
  // Answers requests until Close, which any thread may call. It takes up to a second.
  bool Listen() { return listen_after_bind(); }
  void Close();
  std::string address() const;
  // The keys that clients may send; they may be replaced while the server runs.
  Accepted& keys() { return keys_; }
  // Answers one request of a stream. Returns false if the connection has to be closed.
  bool Answer(httplib::Stream& stream);

 protected:
  using Handler = std::function<void(const httplib::Request&, httplib::Response&)>;
  // `owner`: the number of the client's key.
  using BodyHandler =
      std::function<void(const httplib::Request&, size_t owner, Body*, httplib::Response&)>;
  struct Route {
    std::string method;
    std::string path;  // as httplib matches it
    bool open;         // without the key
  };

 private:
  bool process_and_close_socket(socket_t socket) override;
  HandlerResponse Guard(const httplib::Request& request, httplib::Response& response) const;
  void CheckHost(const httplib::Request& request) const;
  void CheckKey(const httplib::Request& request, httplib::Response& response) const;
  // The number of the request's key; nullopt if it is not one of the server's.
  std::optional<size_t> KeyOf(const httplib::Request& request) const;
  void CheckBody(const httplib::Request& request, httplib::Response& response) const;
  const Route* Find(const httplib::Request& request, httplib::Response& response) const;
  void OfferCommon();
  template <typename Answering>
  void Prepare(Answering* answering);
  // Notes a route as ApiPaths describes it.
  void AddRoute(const std::string& method, const std::string& path);
  void AddGet(const std::string& path, const Handler& handler);
  void AddPost(const std::string& path, const BodyHandler& handler);
  void LogRequest(const httplib::Request& request, const httplib::Response& response) const;
  void Preflight(const httplib::Request& request, httplib::Response& response) const;

  ServerOptions options_;
  Accepted keys_;
  bool loopback_;
  std::vector<Route> routes_;
  std::atomic<int> waiting_{0};  // connections without a thread
  Metrics* metrics_ = nullptr;
  BodyBudget* bodies_ = nullptr;
  std::function<void(std::chrono::milliseconds)> end_answers_;
};

}  // namespace rvv_runner
