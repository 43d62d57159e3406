// SPDX-License-Identifier: Apache-2.0
// Requests of Ollama's API, read as chats, texts and texts for vectors.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "api/api_request.h"
#include "api/embedding_request.h"
#include "api/fields.h"

namespace rvv_runner {

// The version of Ollama whose API is read.
constexpr char kOllamaVersion[] = "0.12.6";

// How long a model stays loaded after a request, by its field `keep_alive`: seconds, or a text of Go's
// durations such as "1h30m". Without a value it stays. Throws ApiError.
std::optional<std::chrono::seconds> ReadKeepAlive(const Json& value);

// True for the paths of Ollama's API, which has its own form of errors and of streams.
inline bool IsOllama(std::string_view path) { return path.starts_with("/api/"); }

// A request to /api/chat or /api/generate.
struct OllamaRequest {
  ApiRequest api;
  std::string prompt;  // of /api/generate
  std::string system;
  bool raw = false;   // the prompt without the chat template
  OrderedJson shown;  // the content of a message with pictures of /api/generate; null: without

  // It asks for no answer, but for a model that is loaded.
  bool only_loads = false;
};

const FieldTable<OllamaRequest>& OllamaChatFields();
const FieldTable<OllamaRequest>& OllamaGenerateFields();
// Of /api/embed, and of its older form /api/embeddings.
const FieldTable<EmbeddingRequest>& OllamaEmbedFields();
const FieldTable<EmbeddingRequest>& OllamaEmbeddingFields();
// Of /api/show: the name of the model.
const FieldTable<std::string>& OllamaShowFields();

// Read a body; see ParseApiRequest.
OllamaRequest ParseOllamaChat(std::string_view body, const Sampling& defaults);
OllamaRequest ParseOllamaGenerate(std::string_view body, const Sampling& defaults);

}  // namespace rvv_runner
