// SPDX-License-Identifier: Apache-2.0
// Replaces ggml's header, of which llama.cpp's JSON code needs only the assertion.
#pragma once

#include <cassert>

#define GGML_ASSERT(condition) assert(condition)
