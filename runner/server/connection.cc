// SPDX-License-Identifier: Apache-2.0
#include "server/connection.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace rvv_runner {
namespace {

using std::chrono::milliseconds;

// Time limits for reading a whole request, and for all waits while its answer is written.
constexpr milliseconds kReadTime{15000};
constexpr milliseconds kWriteTime{30000};
constexpr milliseconds kDrainTime{1000};
constexpr milliseconds kTick{100};
constexpr milliseconds kHurriedTime{1000};  // for each wait, when other clients need the thread

// True if the socket becomes readable (or writable), or the peer hangs up, within this time.
bool Ready(int socket, short events, std::chrono::nanoseconds within) {
  const auto end = std::chrono::steady_clock::now() + within;
  while (true) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now());
    pollfd asked{socket, events, 0};
    const int found = poll(&asked, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (found >= 0 || errno != EINTR) return found > 0;
  }
}

}  // namespace

bool Connection::Late(Clock::time_point start, std::chrono::nanoseconds most) const {
  const auto passed = Clock::now() - start;
  return passed >= most || (passed >= kHurriedTime && hurried_());
}

bool Connection::Wait(short events, Clock::time_point start, std::chrono::nanoseconds most) const {
  while (!Ready(socket_, events, std::min<std::chrono::nanoseconds>(kTick, most))) {
    if (Late(start, most)) return false;
  }
  return true;
}

bool Connection::Await(milliseconds patience) {
  if (begin_ == end_ && !Wait(POLLIN, Clock::now(), patience)) return false;
  asked_ = Clock::now();
  waited_ = {};
  return true;
}

bool Connection::wait_readable() const { return is_readable() || Wait(POLLIN, asked_, kReadTime); }

bool Connection::wait_writable() const {
  const auto start = Clock::now();
  const bool ready = Wait(POLLOUT, start, kWriteTime - waited_);
  waited_ += Clock::now() - start;
  return ready && waited_ < kWriteTime;
}

bool Connection::is_peer_alive() const {
  char byte;
  const ssize_t seen = recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return seen > 0 || (seen < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
}

ssize_t Connection::read(char* target, size_t size) {
  if (begin_ == end_) {
    if (Late(asked_, kReadTime) || !wait_readable()) {
      error_ = httplib::Error::Timeout;
      return -1;
    }
    const ssize_t got = recv(socket_, buffer_.data(), buffer_.size(), 0);
    if (got <= 0) {
      error_ = got == 0 ? httplib::Error::ConnectionClosed : httplib::Error::Read;
      return got;
    }
    begin_ = 0;
    end_ = static_cast<size_t>(got);
  }
  const size_t count = std::min(size, end_ - begin_);
  std::memcpy(target, buffer_.data() + begin_, count);
  begin_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t Connection::write(const char* data, size_t size) {
  answered_ = true;
  while (true) {
    if (!wait_writable()) return -1;
    const ssize_t sent = send(socket_, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return sent;
  }
}

const char* Connection::buffered_data(size_t& size) const {
  size = end_ - begin_;
  return size ? buffer_.data() + begin_ : nullptr;
}

// Nothing uses or logs addresses.
void Connection::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
  sockaddr_storage peer = {};
  socklen_t size = sizeof(peer);
  if (getpeername(socket_, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return;
  const bool six = peer.ss_family == AF_INET6;
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&peer);
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&peer);
  const void* address = six ? static_cast<const void*>(&v6->sin6_addr) : &v4->sin_addr;
  char text[INET6_ADDRSTRLEN];
  if (inet_ntop(peer.ss_family, address, text, sizeof(text)) == nullptr) return;
  ip = text;
  port = ntohs(six ? v6->sin6_port : v4->sin_port);
}

void Connection::get_local_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

void CloseNow(socket_t socket) { close(socket); }

void CloseGently(socket_t socket) {
  shutdown(socket, SHUT_WR);
  std::array<char, 16384> rest;
  const auto end = std::chrono::steady_clock::now() + kDrainTime;
  while (Ready(socket, POLLIN, end - std::chrono::steady_clock::now()) &&
         std::chrono::steady_clock::now() < end &&
         recv(socket, rest.data(), rest.size(), MSG_DONTWAIT) > 0) {
  }
  close(socket);
}

}  // namespace rvv_runner
