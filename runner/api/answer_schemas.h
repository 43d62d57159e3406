// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "input/json.h"

namespace rvv_runner {

// JSON Schemas of answers, and of parts of requests, by their names in the OpenAPI document.
OrderedJson AnswerSchemas();

}  // namespace rvv_runner
