// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <httplib.h>

#include <functional>
#include <string>
#include <vector>

#include "server/endpoints.h"

namespace rvv_runner {

struct ServerOptions {
  std::string host = "127.0.0.1";  // a number, or localhost
  int port = 8000;                 // 0: any that is free
  std::string key;                 // that clients must send; empty: no key
  std::string cors;                // origin whose pages may send requests; empty: none
  size_t connections = 128;        // served at once; as many wait, further ones are closed
};

constexpr size_t kMostBody = size_t{4} << 20;  // bytes

// True if the texts are equal. Its time depends only on the length of `given`.
bool SameKey(const std::string& given, const std::string& key);

// The HTTP server before the endpoints. It checks host, key, method and path, and bounds bodies,
// headers, connections and time.
class HttpServer : public httplib::Server {
 public:
  // Throws InputError if the host is not an address.
  explicit HttpServer(const ServerOptions& options);

  // Binds to the port and returns it. Clients that connect wait until Listen. Throws InputError if
  // the port is not available.
  int Bind();
  // Sets the endpoints; to be called once, before Listen. `endpoints` must outlive the server.
  void Offer(Endpoints* endpoints);
  // Answers requests until Close, which any thread may call.
  bool Listen() { return listen_after_bind(); }
  void Close();
  std::string address() const;
  // True if other machines can reach it without a key.
  bool open_to_all() const { return !loopback_ && options_.key.empty(); }

  // Answers one request of a stream. Returns false if the connection has to be closed.
  bool Answer(httplib::Stream& stream);

 protected:
  using Handler = std::function<void(const httplib::Request&, httplib::Response&)>;
  struct Route {
    std::string method;
    std::string path;  // as httplib matches it
    bool open;         // without the key
    Handler handler;
  };

 private:
  bool process_and_close_socket(socket_t socket) override;
  HandlerResponse Guard(const httplib::Request& request, httplib::Response& response) const;
  void CheckHost(const httplib::Request& request) const;
  void CheckKey(const httplib::Request& request, httplib::Response& response) const;
  void CheckBody(const httplib::Request& request) const;
  const Route* Find(const httplib::Request& request, httplib::Response& response) const;
  void Add(const std::string& method, const std::string& path, bool open, Handler handler);
  void Preflight(const httplib::Request& request, httplib::Response& response) const;

  ServerOptions options_;
  bool loopback_;
  Endpoints* endpoints_ = nullptr;
  std::vector<Route> routes_;
};

}  // namespace rvv_runner
