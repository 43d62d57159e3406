// SPDX-License-Identifier: Apache-2.0
// The messages of a chat, as chat templates read them.
#pragma once

#include <string>
#include <vector>

#include "api/fields.h"
#include "input/json.h"

namespace rvv_runner {

constexpr size_t kMostMessages = 1024;

// A picture in a list of parts, which is not decoded yet: base64 at the path `field`.
OrderedJson PicturePart(const std::string& field, const std::string& base64);

// The fields of a message.
const FieldTable<OrderedJson>& MessageFields();

// A message at the path `field`; adds its unknown fields to `ignored`.
OrderedJson ReadMessage(const std::string& field, const Json& value,
                        std::vector<std::string>* ignored);

// A list of messages.
OrderedJson ReadMessages(const std::string& field, const Json& value,
                         std::vector<std::string>* ignored);

// The name of a tool, as OpenAI allows it.
const std::string& ReadToolName(const std::string& field, const Json& value);

}  // namespace rvv_runner
