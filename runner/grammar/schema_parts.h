// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "input/json.h"

namespace rvv_runner {

// Calls `visit` with a schema that is an object and with each schema in it, outer ones first, and with its
// JSON pointer behind `place`. `visit` may change the schema.
void VisitSchemas(OrderedJson* schema, const std::string& place,
                  const std::function<void(OrderedJson*, const std::string&)>& visit);

}  // namespace rvv_runner
