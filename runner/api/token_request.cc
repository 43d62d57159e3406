// SPDX-License-Identifier: Apache-2.0
#include "api/token_request.h"

#include "api/conversation.h"
#include "api/strict_json.h"
#include "api/tools.h"

namespace rvv_runner {
namespace {

void ReadChat(const FieldValue& at, TokenizeRequest* request) {
  request->chat.messages = ReadMessages(at.name, at.value, &request->ignored);
}

}  // namespace

const FieldTable<TokenizeRequest>& TokenizeFields() {
  using Request = TokenizeRequest;
  static const FieldTable<Request> fields({
      ModelField(&Request::model),
      {{"prompt", Support::kWorks, {{"type", "string"}}, "a text; else `messages`"},
       [](const FieldValue& at, Request* r) { r->text = ReadText(at.name, at.value); }},
      {{"messages", Support::kWorks, ListOfRefs("Message"), "a chat, in the model's template"},
       ReadChat},
      {{"tools", Support::kWorks, ListOfRefs("Tool"), "that the template of a chat shows"},
       [](const FieldValue& at, Request* r) {
         Form form;
         r->chat.tools = ReadTools(at, &form);
       }},
      BooleanField<Request>("add_special_tokens", &Request::first_tokens,
                            "of a text: begin with the tokens that the model's texts begin with "
                            "(default: true). A chat's template writes its own"),
      BooleanField<Request>("return_token_strs", &Request::texts,
                            "the text of each token as `token_strs`"),
      NeutralField<Request>("add_generation_prompt", true, "a chat ends where the answer begins"),
  });
  return fields;
}

const FieldTable<DetokenizeRequest>& DetokenizeFields() {
  using Request = DetokenizeRequest;
  static const FieldTable<Request> fields({
      ModelField(&Request::model),
      Required<Request>(
          {{"tokens",
            Support::kWorks,
            {{"type", "array"}, {"items", {{"type", "integer"}, {"minimum", 0}}}},
            "special tokens become their names"},
           [](const FieldValue& at, Request* r) { r->tokens = ReadIds(at.name, at.value); }}),
  });
  return fields;
}

TokenizeRequest ParseTokenize(std::string_view body) {
  TokenizeRequest request;
  for (const auto& name : TokenizeFields().Read(ParseBody(body), body, &request)) {
    request.ignored.push_back(name);
  }
  if (request.text.has_value() == !request.chat.messages.is_null()) {
    Refuse("prompt", request.text ? "cannot be used beside messages"
                                  : "is missing; give a prompt or messages");
  }
  return request;
}

DetokenizeRequest ParseDetokenize(std::string_view body) {
  DetokenizeRequest request;
  request.ignored = DetokenizeFields().Read(ParseBody(body), body, &request);
  return request;
}

}  // namespace rvv_runner
