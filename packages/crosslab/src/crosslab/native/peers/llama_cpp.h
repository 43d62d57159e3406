// SPDX-License-Identifier: Apache-2.0
// Error exit and model loading of the programs with llama.cpp.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "llama.h"

[[noreturn]] inline void Fail(const std::string& what) {
  std::fprintf(stderr, "llama.cpp: %s\n", what.c_str());
  std::exit(1);
}

// Loads a GGUF file's model; from then on llama.cpp logs only errors.
inline llama_model* LoadModel(const char* path) {
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(path, llama_model_default_params());
  if (!model) Fail("the model cannot be loaded");
  return model;
}

inline llama_context* MakeContext(llama_model* model, const llama_context_params& params) {
  llama_context* context = llama_init_from_model(model, params);
  if (!context) Fail("no context");
  return context;
}
