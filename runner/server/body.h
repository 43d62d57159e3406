// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <httplib.h>

#include <atomic>
#include <cstddef>
#include <string>

#include "input/json.h"

namespace rvv_runner {

constexpr size_t kMostBody = size_t{4} << 20;     // bytes of one request
constexpr size_t kMostBodies = size_t{12} << 20;  // bytes of all requests that are being read

// Bytes of bodies that the server holds at this time.
class BodyBudget {
 public:
  // False if there is no room for them. Then it takes none.
  bool Take(size_t bytes);
  void Give(size_t bytes) { held_ -= bytes; }
  size_t held() const { return held_; }

 private:
  std::atomic<size_t> held_{0};
};

// The body of a request, as it arrives. It takes its bytes from the budget, and gives them back when
// it is destroyed.
class Body {
 public:
  explicit Body(BodyBudget* budget) : budget_(budget) {}
  ~Body();
  Body(const Body&) = delete;
  Body& operator=(const Body&) = delete;

  // Reads all of it. Returns false if httplib could not. Throws ApiError if the budget is used up.
  bool Read(const httplib::Request& request, const httplib::ContentReader& reader);
  const std::string& text() const { return text_; }
  // Frees the text before the object ends.
  void Drop();

 private:
  BodyBudget* budget_;
  std::string text_;
};

// Answers with a JSON value.
void Send(httplib::Response& response, const OrderedJson& body);

}  // namespace rvv_runner
