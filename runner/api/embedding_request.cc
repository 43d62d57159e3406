// SPDX-License-Identifier: Apache-2.0
#include "api/embedding_request.h"

#include "api/strict_json.h"

namespace rvv_runner {
namespace {

constexpr int64_t kMostDimensions = 1 << 20;

RequestField<EmbeddingRequest> Input() {
  const auto read = [](const FieldValue& at, EmbeddingRequest* request) {
    request->inputs = ReadPrompts(at, kMostInputs);
  };
  return Required<EmbeddingRequest>(
      {{"input", Support::kWorks, PromptSchema(),
        "a text or a list of token ids, or up to " + std::to_string(kMostInputs) + " of them"},
       read});
}

RequestField<EmbeddingRequest> Encoding() {
  const auto read = [](const FieldValue& at, EmbeddingRequest* request) {
    const std::string& form = ReadText(at.name, at.value);
    if (form != "float" && form != "base64") Refuse(at.name, "must be float or base64");
    request->base64 = form == "base64";
  };
  return {
      {"encoding_format", Support::kWorks, {{"type", "string"}, {"enum", {"float", "base64"}}}, ""},
      read};
}

}  // namespace

const FieldTable<EmbeddingRequest>& EmbeddingFields() {
  using Request = EmbeddingRequest;
  static const FieldTable<Request> fields({
      ModelField(&Request::model),
      Input(),
      Encoding(),
      IntegerField<Request>(
          "dimensions", 1, kMostDimensions, &Request::dimensions,
          "the first numbers of a vector, scaled to length 1; for models that were trained so"),
      IgnoredField<Request>("user"),
  });
  return fields;
}

EmbeddingRequest ParseEmbeddingRequest(std::string_view body) {
  EmbeddingRequest request;
  request.ignored = EmbeddingFields().Read(ParseBody(body), body, &request);
  return request;
}

}  // namespace rvv_runner
