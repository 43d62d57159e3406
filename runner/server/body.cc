// SPDX-License-Identifier: Apache-2.0
#include "server/body.h"

#include "api/api_error.h"

namespace rvv_runner {

bool BodyBudget::Take(size_t bytes) {
  if ((held_ += bytes) <= kMostBodies) return true;
  held_ -= bytes;
  return false;
}

Body::~Body() { Drop(); }

void Body::Drop() {
  budget_->Give(text_.size());
  std::string().swap(text_);
}

bool Body::Read(const httplib::Request& request, const httplib::ContentReader& reader) {
  // Memory is used only where bytes are written.
  text_.reserve(request.get_header_value_u64("Content-Length"));
  bool full = false;
  const bool whole = reader([&](const char* data, size_t size) {
    full = !budget_->Take(size);
    if (!full) text_.append(data, size);
    return !full;
  });
  if (full) throw ApiError(503, "the server is reading other long bodies: try again later");
  return whole;
}

void Send(httplib::Response& response, const OrderedJson& body) {
  response.set_content(WrittenInOrder(body), "application/json");
}

}  // namespace rvv_runner
