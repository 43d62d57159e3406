// SPDX-License-Identifier: Apache-2.0
// In the place of ggml's header, of which llama.cpp's JSON needs the assertion alone.
#pragma once

#include <cassert>

#define GGML_ASSERT(condition) assert(condition)
