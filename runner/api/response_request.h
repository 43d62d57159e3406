// SPDX-License-Identifier: Apache-2.0
// Requests to /v1/responses, read as chats.
#pragma once

#include "api/api_request.h"
#include "api/fields.h"

namespace rvv_runner {

struct ResponseRequest {
  ApiRequest api;
  std::string instructions;                      // empty: none
  OrderedJson repeated = OrderedJson::object();  // fields that the response repeats
};

const FieldTable<ResponseRequest>& ResponseFields();

// Reads a body; see ParseApiRequest.
ResponseRequest ParseResponseRequest(std::string_view body, const Sampling& defaults);

}  // namespace rvv_runner
