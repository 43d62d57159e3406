// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <httplib.h>

#include <array>
#include <chrono>
#include <functional>
#include <string>

namespace rvv_runner {

// A client's connection. httplib bounds the time of each read and each write; this class bounds the
// time of a whole request and the sum of the waits of all writes, so that a client that sends or
// takes a byte now and then cannot hold a thread.
class Connection final : public httplib::Stream {
 public:
  // Does not own the socket, like httplib's own streams.
  explicit Connection(socket_t socket) : socket_(socket) {}

  // Waits for the first byte of a request, and starts its time limit. Returns false when no byte
  // comes within `patience`, when the client is gone, or when `stopping` returns true.
  bool Await(std::chrono::milliseconds patience, const std::function<bool()>& stopping);

  bool is_readable() const override { return begin_ < end_; }
  bool wait_readable() const override;
  bool wait_writable() const override;
  bool is_peer_alive() const override;
  ssize_t read(char* target, size_t size) override;
  ssize_t write(const char* data, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }
  time_t duration() const override { return 0; }
  const char* buffered_data(size_t& size) const override;
  void consume_buffered(size_t size) override { begin_ += size; }

 private:
  using Clock = std::chrono::steady_clock;

  socket_t socket_;
  Clock::time_point deadline_ = Clock::now();
  mutable std::chrono::nanoseconds waited_{0};  // for the client to take what is written
  std::array<char, 16384> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

// Reads and drops what the client still sends, for at most a second, and then closes the socket.
// Closing a socket with unread data would make the client lose the answer.
void CloseGently(socket_t socket);

}  // namespace rvv_runner
