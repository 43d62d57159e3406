// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <httplib.h>

#include <array>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

namespace rvv_runner {

// A client's connection. httplib bounds the time of each read and each write; this class bounds the
// time of a whole request and the sum of the waits of all writes, so that a client that sends or
// takes a byte now and then cannot hold a thread. In a hurry, a client has a second instead.
class Connection final : public httplib::Stream {
 public:
  // Does not own the socket, like httplib's own streams.
  // `hurried` says whether other clients need this one's thread, or the server is stopping.
  Connection(socket_t socket, std::function<bool()> hurried)
      : socket_(socket), hurried_(std::move(hurried)) {}

  // Waits for the first byte of a request, and starts its time limit. Returns false when no byte
  // comes within `patience` or when the client is gone.
  bool Await(std::chrono::milliseconds patience);

  // True if anything was written.
  bool answered() const { return answered_; }

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

  // True if a client that has kept the server waiting since `start` has used up its time.
  bool Late(Clock::time_point start, std::chrono::nanoseconds most) const;
  // Waits until the socket is ready for these events. Returns false when the client is late.
  bool Wait(short events, Clock::time_point start, std::chrono::nanoseconds most) const;

  socket_t socket_;
  std::function<bool()> hurried_;
  Clock::time_point asked_ = Clock::now();      // when the request began
  mutable std::chrono::nanoseconds waited_{0};  // for the client to take what is written
  std::array<char, 16384> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  bool answered_ = false;
};

// For a client that got no answer.
void CloseNow(socket_t socket);

// Reads and drops what the client still sends, for at most a second, and then closes the socket.
// Closing a socket with unread data would make the client lose the answer.
void CloseGently(socket_t socket);

}  // namespace rvv_runner
