// SPDX-License-Identifier: Apache-2.0
#include "api/description.h"

#include <algorithm>

#include "api/answer_schemas.h"
#include "api/api_error.h"
#include "api/api_request.h"
#include "api/conversation.h"
#include "api/embedding_request.h"
#include "api/ollama_request.h"
#include "api/response_request.h"
#include "api/token_request.h"

namespace rvv_runner {
namespace {

constexpr char kHtml[] = "text/html";
constexpr char kPlain[] = "text/plain";

std::string Word(Support support) {
  switch (support) {
    case Support::kWorks: return "works";
    case Support::kOwn: return "own";
    case Support::kDiffers: return "differs";
    case Support::kIgnored: return "ignored";
    default: return "refused";
  }
}

std::string Table(const std::vector<FieldAbout>& fields) {
  std::string text = "| field | | |\n|---|---|---|\n";
  for (const FieldAbout& field : fields) {
    const std::string needed = field.required ? "; required" : "";
    text +=
        "| `" + field.name + "` | " + Word(field.support) + needed + " | " + field.about + " |\n";
  }
  return text;
}

OrderedJson ObjectSchema(const std::vector<FieldAbout>& fields) {
  OrderedJson schema = {{"type", "object"}};
  for (const FieldAbout& field : fields) {
    OrderedJson& property = schema["properties"][field.name] = field.schema;
    // Beside a reference, older readers ignore all.
    if (!property.contains("$ref")) {
      property["description"] =
          Word(field.support) + (field.about.empty() ? "" : ": " + field.about);
    }
    if (field.required) schema["required"].push_back(field.name);
  }
  return schema;
}

bool IsMedia(const std::string& answer) { return answer.find('/') != std::string::npos; }

OrderedJson Content(const PathAbout& path) {
  if (IsMedia(path.answer)) return {{path.answer, {{"schema", {{"type", "string"}}}}}};
  OrderedJson content = {{"application/json", {{"schema", Ref(path.answer)}}}};
  // OpenAPI 3.1 has no schema for the events of a stream: this is that of the data of one.
  const char* stream = IsOllama(path.path) ? "application/x-ndjson" : "text/event-stream";
  if (!path.event.empty()) content[stream] = {{"schema", Ref(path.event)}};
  return content;
}

// The path as OpenAPI writes its parameters, and their descriptions.
std::pair<std::string, OrderedJson> Parameters(const std::string& path) {
  const size_t colon = path.find(':');
  if (colon == std::string::npos) return {path, OrderedJson::array()};
  const std::string name = path.substr(colon + 1);
  const OrderedJson parameter = {
      {"name", name}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}};
  return {path.substr(0, colon) + "{" + name + "}", OrderedJson::array({parameter})};
}

// A name for the functions of generated clients: post_v1_completions.
std::string OperationId(const PathAbout& path) {
  std::string id = path.method + path.path;
  std::transform(id.begin(), id.end(), id.begin(), [](unsigned char c) {
    return std::isalnum(c) ? static_cast<char>(std::tolower(c)) : '_';
  });
  return id;
}

OrderedJson Operation(const PathAbout& path) {
  OrderedJson operation = {{"operationId", OperationId(path)}, {"summary", path.about}};
  operation["parameters"] = Parameters(path.path).second;
  if (!path.request.empty()) {
    operation["requestBody"] = {
        {"required", true}, {"content", {{"application/json", {{"schema", Ref(path.request)}}}}}};
  }
  const char* of_error = IsOllama(path.path) ? "OllamaError" : "Error";
  const OrderedJson error = {{"description", "error"},
                             {"content", {{"application/json", {{"schema", Ref(of_error)}}}}}};
  operation["responses"] = {{"200", {{"description", "answer"}, {"content", Content(path)}}},
                            {"default", error}};
  operation["security"] = OrderedJson::array({OrderedJson::object()});
  if (!path.open) operation["security"].push_back({{"key", OrderedJson::array()}});
  return operation;
}

OrderedJson Schemas() {
  OrderedJson schemas = AnswerSchemas();
  schemas["Message"] = ObjectSchema(MessageFields().About());
  for (const PathAbout& path : ApiPaths()) {
    if (!path.request.empty()) schemas[path.request] = ObjectSchema(path.fields);
  }
  return schemas;
}

// A path of other servers, or of this one.
struct Elsewhere {
  const char* path;
  const char* llama_server;  // "yes", or in which form; "" without it
  const char* ollama;
  const char* instead;  // what to use here, if this server lacks it
};

// llama-server of llama.cpp 0c1e57098 and Ollama 0.14, by their documentation.
constexpr Elsewhere kElsewhere[] = {
    {"POST /v1/chat/completions", "yes", "yes", ""},
    {"POST /v1/completions", "yes", "yes", ""},
    {"POST /v1/responses", "yes", "yes", ""},
    {"POST /v1/messages", "yes", "yes", "`/v1/chat/completions`"},
    {"POST /v1/embeddings", "yes", "yes", ""},
    {"POST /v1/rerank", "yes", "", ""},
    {"GET /v1/models", "yes", "yes", ""},
    {"GET /v1/models/:model", "", "yes", ""},
    {"POST /api/chat", "", "yes", ""},
    {"POST /api/generate", "", "yes", ""},
    {"POST /api/embed", "", "yes", ""},
    {"POST /api/embeddings", "", "yes", ""},
    {"GET /api/tags", "", "yes", ""},
    {"GET /api/ps", "", "yes", ""},
    {"POST /api/show", "", "yes", ""},
    {"GET /api/version", "", "yes", ""},
    {"POST /api/pull", "", "yes", "`./run.sh pull`"},
    {"POST /api/create", "", "yes", "`nox -s model` on a PC"},
    {"POST /api/copy", "", "yes", "`--alias`"},
    {"DELETE /api/delete", "", "yes", "`rm -r` of its folder"},
    {"POST /api/push", "", "yes", ""},
    {"POST /completion", "yes", "", "`/v1/completions`"},
    {"POST /infill", "yes", "", ""},
    {"POST /tokenize", "in its own form", "", ""},
    {"POST /detokenize", "yes", "", ""},
    {"POST /apply-template", "yes", "", "`/tokenize` of messages"},
    {"GET /tokenizer_info", "", "", ""},
    {"GET /props", "yes", "", "`/api/show`"},
    {"GET /slots", "yes", "", "`/metrics`"},
    {"GET /lora-adapters", "yes", "", ""},
    {"GET /health", "yes", "", ""},
    {"GET /metrics", "if enabled", "", ""},
    {"GET /openapi.json", "", "", ""},
    {"GET /", "yes", "a line of text", ""},
};

// "works", or "differs" if a field of the request does not work.
std::string Word(const PathAbout& path) {
  const bool works = std::ranges::all_of(path.fields, [](const FieldAbout& field) {
    return field.support == Support::kWorks || field.support == Support::kOwn;
  });
  return works ? "works" : "differs";
}

std::string TableBesideOthers() {
  std::string text = "| path | here | llama-server | Ollama |\n|---|---|---|---|\n";
  for (const Elsewhere& row : kElsewhere) {
    const auto here = std::ranges::find_if(ApiPaths(), [&](const PathAbout& path) {
      return path.method + " " + path.path == row.path;
    });
    text += std::string("| `") + row.path + "` | " +
            (here != ApiPaths().end() ? Word(*here)
             : *row.instead == '\0'   ? "no"
                                      : std::string("no: ") + row.instead) +
            " | " + row.llama_server + " | " + row.ollama + " |\n";
  }
  return text;
}

std::vector<PathAbout> MakePaths() {
  const auto read = [](const char* path, const char* about, bool open, const char* answer) {
    return PathAbout{"GET", path, about, open, "", {}, answer};
  };
  return {
      {"POST", "/v1/chat/completions", "Answers a chat.", false, "ChatRequest",
       RequestFields(ApiKind::kChat).About(), "ChatCompletion", "ChatCompletionChunk"},
      {"POST", "/v1/completions", "Continues a text, without a chat template.", false,
       "CompletionRequest", RequestFields(ApiKind::kText).About(), "Completion", "Completion"},
      {"POST", "/v1/responses",
       "Answers a chat, as the newer clients ask. `reasoning_tokens` of an answer is always 0.",
       false, "ResponseRequest", ResponseFields().About(), "Response", "ResponseEvent"},
      {"POST", "/v1/embeddings",
       "Vectors of texts, of length 1: the mean of a text's states after the last layer and its "
       "norm. "
       "A model that was not trained for it gives vectors that tell less than those of an "
       "embedding "
       "model. A BERT gives the vectors that it was trained for, and answers nothing else.",
       false, "EmbeddingRequest", EmbeddingFields().About(), "EmbeddingList", ""},
      {"POST", "/api/chat", "Answers a chat, in the form of Ollama's API.", false,
       "OllamaChatRequest", OllamaChatFields().About(), "OllamaAnswer", "OllamaAnswer"},
      {"POST", "/api/generate", "Answers a prompt, in the form of Ollama's API.", false,
       "OllamaGenerateRequest", OllamaGenerateFields().About(), "OllamaAnswer", "OllamaAnswer"},
      {"POST", "/api/embed", "Vectors of texts, in the form of Ollama's API.", false,
       "OllamaEmbedRequest", OllamaEmbedFields().About(), "OllamaVectors", ""},
      {"POST", "/api/embeddings", "The vector of one text, in the older form of Ollama's API.",
       false, "OllamaEmbeddingRequest", OllamaEmbeddingFields().About(), "OllamaVector", ""},
      {"POST", "/api/show", "The model, in the form of Ollama's API.", false, "OllamaShowRequest",
       OllamaShowFields().About(), "OllamaModel"},
      read("/api/tags", "The models, in the form of Ollama's API: one.", false, "OllamaModels"),
      read("/api/ps", "The loaded models, in the form of Ollama's API: one.", false,
           "OllamaModels"),
      read("/api/version", "The version of Ollama whose API this server has.", true,
           "OllamaVersion"),
      {"POST", "/tokenize", "The tokens of a text or a chat, in the form of vLLM's.", false,
       "TokenizeRequest", TokenizeFields().About(), "Tokens"},
      {"POST", "/detokenize", "The text of tokens, in the form of vLLM's.", false,
       "DetokenizeRequest", DetokenizeFields().About(), "Text"},
      read("/tokenizer_info", "The first and the last token of a text.", false, "TokenizerInfo"),
      read("/v1/models", "The models: one.", false, "ModelList"),
      read("/v1/models/:model", "The model.", false, "Model"),
      read("/health", "503 after a failed step of the model.", true, "Health"),
      read("/metrics", "Counts for Prometheus.", false, kPlain),
      read("/openapi.json", "This description, in OpenAPI.", true, "Description"),
      read("/", "A page to chat with the model.", true, kHtml),
  };
}

}  // namespace

const std::vector<PathAbout>& ApiPaths() {
  static const std::vector<PathAbout> paths = MakePaths();
  return paths;
}

std::string ApiPage() {
  std::string page =
      "<!-- SPDX-License-Identifier: Apache-2.0 -->\n"
      "# The server's API, field by field\n\n"
      "The server prints this page from the tables by which it reads requests: `runner serve "
      "--describe`.\n"
      "`runner serve --openapi` prints the same as an OpenAPI document, which the server also has "
      "at `/openapi.json`.\n"
      "[Serve a model](serve.md) says how to start it.\n\n"
      "| word | meaning |\n|---|---|\n"
      "| works | as OpenAI's service, or the named one, documents it |\n"
      "| own | an addition of this server |\n"
      "| differs | works in part, or in another way |\n"
      "| ignored | accepted; changes nothing |\n"
      "| refused | accepted only with the value that changes nothing; every other value gets "
      "status 400 |\n\n"
      "Fields that are not listed are ignored, and the header `X-Ignored-Fields` names them; with "
      "`--strict` they get status\n400. A keyword of a schema that no grammar expresses is "
      "checked in the whole answer alone, and the header\n`X-Checked-Fields` names it; with "
      "`strict: true` or "
      "`--strict` it gets status 400. A pattern that no grammar\nexpresses gets status 400 always. "
      "`null` is the same as no field. An error has "
      "OpenAI's form; `param` names the field.\n"
      "An error that ends a stream is its last event; `[DONE]` follows it, except in "
      "`/v1/responses`.\n\n"
      "| `code` | status | `type` | |\n|---|---|---|---|\n";
  for (const ErrorKind& kind : kErrorKinds) {
    page += std::string("| `") + kind.code + "` | " + std::to_string(kind.status) + " | `" +
            ApiError::TypeOf(kind.status) + "` | " + kind.about + " |\n";
  }
  for (const PathAbout& path : ApiPaths()) {
    if (path.fields.empty()) continue;
    page +=
        "\n## " + path.method + " " + path.path + "\n\n" + path.about + "\n\n" + Table(path.fields);
  }
  page +=
      "\n## Beside llama-server and Ollama\n\n"
      "*differs*: some fields differ or are refused, as listed above. An empty cell: the program "
      "lacks the path.\n\n" +
      TableBesideOthers();
  page += "\n## A message\n\n" + Table(MessageFields().About());
  page += "\n## Without a body\n\n| path | key | |\n|---|---|---|\n";
  for (const PathAbout& path : ApiPaths()) {
    if (!path.fields.empty()) continue;
    const std::string key = path.open ? "no" : "yes";
    page += "| `" + path.method + " " + path.path + "` | " + key + " | " + path.about + " |\n";
  }
  return page;
}

OrderedJson OpenApi() {
  OrderedJson document = {{"openapi", "3.1.0"},
                          {"info",
                           {{"title", "mlc-rvv runner"},
                            {"version", "1"},
                            {"license", {{"name", "Apache-2.0"}, {"identifier", "Apache-2.0"}}}}}};
  OrderedJson& paths = document["paths"] = OrderedJson::object();
  for (const PathAbout& path : ApiPaths()) {
    OrderedJson method = path.method == "GET" ? "get" : "post";
    paths[Parameters(path.path).first][method.get<std::string>()] = Operation(path);
  }
  document["components"]["schemas"] = Schemas();
  document["components"]["securitySchemes"]["key"] = {{"type", "http"}, {"scheme", "bearer"}};
  return document;
}

}  // namespace rvv_runner
