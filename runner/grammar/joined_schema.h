// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "input/json.h"

namespace rvv_runner {

// True if a keyword bounds values of one type, or is `type`.
bool Bounds(std::string_view keyword);

// Gives a schema the keywords of another one, so that its values are those that fit both. False if
// a keyword of one changes what a keyword of the other means, or both have one with other values;
// the schema is of no use then.
bool Join(const OrderedJson& more, OrderedJson* schema);

}  // namespace rvv_runner
