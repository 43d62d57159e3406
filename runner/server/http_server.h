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
  std::string key;                 // that clients have to show; empty: none
  std::string cors;                // origin whose pages may ask; empty: none
  size_t connections = 128;        // served at once; as many wait, and more are closed
};

constexpr size_t kMostBody = size_t{4} << 20;  // bytes

// Whether two texts are equal, in a time that depends on the length of `given` alone.
bool SameKey(const std::string& given, const std::string& key);

// HTTP before the endpoints: who is let in, with which method, to which path; bounds of bodies,
// headers, connections and time.
class HttpServer : public httplib::Server {
 public:
  // Throws InputError for a host that is no address.
  explicit HttpServer(const ServerOptions& options);

  // The port that it is bound to: who connects waits until it answers. Throws InputError for a port
  // that cannot be had.
  int Bind();
  // What it will answer with: once, before anything is answered. `endpoints` must outlive it.
  void Offer(Endpoints* endpoints);
  // Answers until Close(); any thread may call that.
  bool Listen() { return listen_after_bind(); }
  void Close();
  std::string address() const;
  // Other machines reach it, and need no key.
  bool open_to_all() const { return !loopback_ && options_.key.empty(); }

  // Answers one request from a stream. False when the connection is to be closed.
  bool Answer(httplib::Stream& stream);

 protected:
  using Handler = std::function<void(const httplib::Request&, httplib::Response&)>;
  struct Route {
    std::string method;
    std::string path;  // what httplib matches
    bool open;         // to those without the key
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
