// SPDX-License-Identifier: Apache-2.0
#include "api/api_request.h"

#include <algorithm>

#include "api/api_error.h"
#include "api/conversation.h"
#include "api/strict_json.h"

namespace rvv_runner {
namespace {

using Request = RequestField<ApiRequest>;
using Fields = FieldTable<ApiRequest>::Fields;

constexpr int64_t kMany = int64_t{1} << 30;

void ReadStop(const FieldValue& at, ApiRequest* request) {
  const Json list = at.value.is_array() ? at.value : Json::array({at.value});
  CheckCount(at.name, list.size(), kMostStops, "strings");
  request->sampling.stop.clear();
  for (const Json& stop : list) {
    const std::string& text = ReadText(at.name, stop);
    if (text.empty()) Refuse(at.name, "holds an empty string");
    CheckCount(at.name, text.size(), kMostStopBytes, "bytes in a string");
    request->sampling.stop.push_back(text);
  }
}

void ReadBias(const FieldValue& at, ApiRequest* request) {
  if (!at.value.is_object()) Refuse(at.name, "must be an object of token ids");
  request->sampling.logit_bias.clear();
  for (const auto& [key, bias] : at.value.items()) {
    const bool number =
        !key.empty() && key.size() <= 9 && key.find_first_not_of("0123456789") == std::string::npos;
    if (!number) Refuse(at.name, "must have token ids as names");
    request->sampling.logit_bias[std::stoi(key)] = ReadReal(at.name, bias);
  }
}

void ReadStreamOptions(const FieldValue& at, ApiRequest* request) {
  if (!at.value.is_object()) Refuse(at.name, "must be an object");
  for (const auto& [key, entry] : at.value.items()) {
    const std::string place = at.name + "." + key;
    if (key == "include_usage") {
      request->include_usage = ReadBoolean(place, entry);
    } else if (key != "include_obfuscation" || ReadBoolean(place, entry)) {
      Refuse(place, "is not supported here");
    }
  }
}

void ReadSeed(const FieldValue& at, ApiRequest* request) {
  constexpr int64_t kExact = int64_t{1} << 53;
  // One that is written as a real number has to be exact.
  request->sampling.seed =
      at.value.is_number_integer()
          ? at.value.get<uint64_t>()
          : static_cast<uint64_t>(ReadInteger(at.name, at.value, -kExact, kExact));
}

// A real number of the sampling, between bounds that the engine checks.
Request Number(const char* name, double low, double high, double Sampling::* target,
               Support support = Support::kWorks) {
  const auto read = [=](const FieldValue& at, ApiRequest* request) {
    request->sampling.*target = ReadReal(at.name, at.value);
  };
  return {{name, support, {{"type", "number"}, {"minimum", low}, {"maximum", high}}, ""}, read};
}

Request Count(const char* name, int64_t low, int64_t high, int64_t Sampling::* target,
              const std::string& about = "") {
  const auto read = [=](const FieldValue& at, ApiRequest* request) {
    request->sampling.*target = ReadInteger(at.name, at.value, low, high);
  };
  return {{name, Support::kWorks, IntegerSchema(low, high), about}, read};
}

// How tokens are chosen.
Fields SamplingFields() {
  return {
      Number("temperature", 0, 100, &Sampling::temperature),
      Number("top_p", 0, 1, &Sampling::top_p),
      Number("min_p", 0, 1, &Sampling::min_p, Support::kOwn),
      As(Support::kOwn, Count("top_k", -1, kMany, &Sampling::top_k, "-1 and 0: all tokens")),
      Number("repetition_penalty", 0, 100, &Sampling::repetition_penalty, Support::kOwn),
      Number("presence_penalty", -2, 2, &Sampling::presence_penalty),
      Number("frequency_penalty", -2, 2, &Sampling::frequency_penalty),
      {{"seed", Support::kWorks, {{"type", "integer"}}, ""}, ReadSeed},
      {{"logit_bias",
        Support::kWorks,
        {{"type", "object"}, {"additionalProperties", {{"type", "number"}}}},
        ""},
       ReadBias},
      {{"stop", Support::kWorks, Schema(R"({"anyOf": [{"type": "string"},
                                         {"type": "array", "items": {"type": "string"}}]})"),
        "at most " + std::to_string(kMostStops) + " strings of " + std::to_string(kMostStopBytes) +
            " bytes"},
       ReadStop},
  };
}

Fields CommonFields() {
  Fields fields = {
      IntegerField<ApiRequest>("n", 1, kMostAnswers, &ApiRequest::n,
                               "answers of all prompts together: at most " +
                                   std::to_string(kMostAnswers) +
                                   ", and at most the server's `--queue`"),
      BooleanField<ApiRequest>("stream", &ApiRequest::stream),
      {{"stream_options", Support::kDiffers, Schema(R"({"type": "object", "properties": {
          "include_usage": {"type": "boolean"}, "include_obfuscation": {"type": "boolean"}}})"),
        "`include_usage`; `include_obfuscation` must be false"},
       ReadStreamOptions},
      NeutralField<ApiRequest>("store", false, "no answer is stored"),
  };
  const Fields sampling = SamplingFields();
  fields.insert(fields.end(), sampling.begin(), sampling.end());
  for (const char* name : kUnusedFields) fields.push_back(IgnoredField<ApiRequest>(name));
  return fields;
}

Request Messages() {
  const OrderedJson schema = {
      {"type", "array"}, {"items", Ref("Message")}, {"minItems", 1}, {"maxItems", kMostMessages}};
  const auto read = [](const FieldValue& at, ApiRequest* request) {
    request->chat_input.messages = ReadMessages(at.name, at.value, &request->ignored);
  };
  return Required<ApiRequest>(
      {{"messages", Support::kDiffers, schema,
        "the model's chat template accepts or refuses their order; an assistant's last message is "
        "continued. Fields of a message: below"},
       read});
}

// What the answer of a chat has to match.
Fields FormFields() {
  const auto tools = [](const FieldValue& at, ApiRequest* request) {
    request->chat_input.tools = ReadTools(at, &request->form);
  };
  const auto parallel = [](const FieldValue& at, ApiRequest* request) {
    request->form.parallel = ReadBoolean(at.name, at.value);
  };
  return {
      {{"response_format", Support::kDiffers, Ref("ResponseFormat"),
        "`text`, `json_object`, `json_schema`. Beside `tools`, an answer that calls nothing has to "
        "match. With `strict`, a keyword that a grammar cannot express is refused by name"},
       [](const FieldValue& at, ApiRequest* r) { ReadFormat(at, &r->form); }},
      {{"tools",
        Support::kDiffers,
        {{"type", "array"}, {"items", Ref("Tool")}, {"maxItems", kMostTools}},
        "functions; of models whose chat template writes calls as JSON. `strict`: as for "
        "`response_format`"},
       tools},
      {{"tool_choice", Support::kWorks, Ref("ToolChoice"), ""},
       [](const FieldValue& at, ApiRequest* r) { ReadChoice(at, &r->form); }},
      {{"parallel_tool_calls",
        Support::kWorks,
        {{"type", "boolean"}},
        "at most " + std::to_string(kMostCalls) + " calls"},
       parallel},
  };
}

Fields ChatFields() {
  const auto logprobs = [](const FieldValue& at, ApiRequest* r) {
    if (ReadBoolean(at.name, at.value)) {
      r->sampling.top_logprobs = std::max<int64_t>(0, r->sampling.top_logprobs);
    }
  };
  const char* old = "use tools and tool_choice";
  Fields fields = {
      ModelField(&ApiRequest::model),
      Messages(),
      Count("max_completion_tokens", 1, kMostAsked, &Sampling::max_tokens,
            "as many as fit if absent or larger"),
      Count("max_tokens", 1, kMostAsked, &Sampling::max_tokens,
            "not beside `max_completion_tokens`"),
      {{"logprobs", Support::kWorks, {{"type", "boolean"}}, ""}, logprobs},
      Count("top_logprobs", 0, kMostTop, &Sampling::top_logprobs, "needs `logprobs`"),
      NeutralField<ApiRequest>("modalities", Json::array({"text"}), "this model writes only text"),
      NeutralField<ApiRequest>("functions", nullptr, old),
      NeutralField<ApiRequest>("function_call", "none", old),
  };
  for (const Fields& more : {FormFields(), CommonFields()}) {
    fields.insert(fields.end(), more.begin(), more.end());
  }
  return fields;
}

Request Prompt() {
  const auto read = [](const FieldValue& at, ApiRequest* request) {
    request->prompts = ReadPrompts(at, kMostPrompts);
  };
  const std::string about = "a text or a list of token ids, or up to " +
                            std::to_string(kMostPrompts) + " of them; without a chat template";
  return Required<ApiRequest>({{"prompt", Support::kWorks, PromptSchema(), about}, read});
}

Request TextTokens() {
  const auto read = [](const FieldValue& at, ApiRequest* request) {
    request->sampling.max_tokens = ReadInteger(at.name, at.value, 0, kMostAsked);
    request->only_reads = request->sampling.max_tokens == 0;
  };
  return {
      {"max_tokens", Support::kWorks, IntegerSchema(0, kMostAsked), "16 if absent; 0 needs `echo`"},
      read};
}

Fields TextFields() {
  const auto best_of = [](const FieldValue& at, ApiRequest*) {
    ReadInteger(at.name, at.value, 1, 1);
  };
  Fields fields = {
      ModelField(&ApiRequest::model),
      Prompt(),
      TextTokens(),
      Count("logprobs", 0, kMostTop, &Sampling::top_logprobs,
            "with `echo`, also those of the prompt's tokens"),
      BooleanField<ApiRequest>("echo", &ApiRequest::echo),
      NeutralField<ApiRequest>("suffix", "", "a text is only continued"),
      {{"best_of", Support::kRefused, SchemaOf(1), "must be 1"}, best_of},
  };
  const Fields common = CommonFields();
  fields.insert(fields.end(), common.begin(), common.end());
  return fields;
}

// Checks that depend on several fields.
void CheckTogether(const Json& body, const ApiRequest& request) {
  if (body.contains("max_tokens") && body.contains("max_completion_tokens")) {
    Refuse("max_tokens", "cannot be used beside max_completion_tokens, which means the same");
  }
  if (body.contains("stream_options") && !request.stream) {
    Refuse("stream_options", "needs stream to be true");
  }
  if (request.chat() && body.contains("top_logprobs") && body.value("logprobs", Json()) != true) {
    Refuse("top_logprobs", "needs logprobs to be true");
  }
  if (request.only_reads && !request.echo) {
    Refuse("max_tokens", "must be at least 1, or echo must be true");
  }
  CheckCount("n", request.answers(), kMostAnswers, "answers of all prompts together");
}

}  // namespace

std::vector<ApiPrompt> ReadPrompts(const FieldValue& at, size_t most) {
  if (at.value.is_array() && at.value.empty()) Refuse(at.name, "is an empty list");
  const bool many = at.value.is_array() && !at.value[0].is_number();
  const Json list = many ? at.value : Json::array({at.value});
  CheckCount(at.name, list.size(), most, "prompts");
  std::vector<ApiPrompt> prompts;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string name = many ? EntryOf(at.name, i) : at.name;
    if (list[i].is_array() && list[i].empty()) Refuse(name, "is an empty list");
    if (many && !list[i].is_string() && !list[i].is_array()) {
      Refuse(name, "must be a text or a list of token ids, as the first prompt is");
    }
    if (list[i].is_array()) {
      prompts.emplace_back(ReadIds(name, list[i]));
    } else {
      prompts.emplace_back(ReadText(name, list[i]));
    }
  }
  return prompts;
}

OrderedJson PromptSchema() {
  return Schema(R"({"anyOf": [
    {"type": "string"}, {"type": "array", "items": {"type": "string"}},
    {"type": "array", "items": {"type": "integer"}},
    {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}]})");
}

const FieldTable<ApiRequest>& RequestFields(ApiKind kind) {
  static const FieldTable<ApiRequest> chat(ChatFields()), text(TextFields());
  return kind == ApiKind::kText ? text : chat;
}

ApiRequest ParseApiRequest(ApiKind kind, std::string_view body, const Sampling& defaults) {
  const Json table = ParseBody(body);
  ApiRequest request;
  request.kind = kind;
  request.sampling = defaults;
  // The default of OpenAI's service.
  if (kind == ApiKind::kText) request.sampling.max_tokens = 16;
  for (const std::string& name : RequestFields(kind).Read(table, body, &request)) {
    const auto& other = RequestFields(kind == ApiKind::kText ? ApiKind::kChat : ApiKind::kText);
    if (other.Has(name)) {
      Refuse(name, "is not supported here: it belongs to the other kind of completions");
    }
    request.ignored.push_back(name);
  }
  CheckTogether(table, request);
  if (request.sampling.top_k < 0) request.sampling.top_k = 0;  // both mean all
  return request;
}

}  // namespace rvv_runner
