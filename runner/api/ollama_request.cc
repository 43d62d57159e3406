// SPDX-License-Identifier: Apache-2.0
#include "api/ollama_request.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "api/conversation.h"
#include "api/strict_json.h"

namespace rvv_runner {
namespace {

using OllamaField = RequestField<OllamaRequest>;
using Fields = FieldTable<OllamaRequest>::Fields;

// The names of sampling options that Ollama and OpenAI's protocol call by other names.
struct Option {
  const char* name;
  const char* field;  // of a text's request
};
constexpr Option kOptions[] = {{"temperature", "temperature"},
                               {"top_p", "top_p"},
                               {"min_p", "min_p"},
                               {"top_k", "top_k"},
                               {"seed", "seed"},
                               {"stop", "stop"},
                               {"repeat_penalty", "repetition_penalty"},
                               {"presence_penalty", "presence_penalty"},
                               {"frequency_penalty", "frequency_penalty"}};

void ReadOptions(const FieldValue& at, OllamaRequest* request) {
  if (!at.value.is_object()) Refuse(at.name, "must be an object");
  const auto& known = RequestFields(ApiKind::kText);
  for (const auto& [name, value] : at.value.items()) {
    const std::string place = at.name + "." + name;
    const auto* option = std::find_if(std::begin(kOptions), std::end(kOptions),
                                      [&](const Option& one) { return one.name == name; });
    // Ollama draws another seed for this one.
    if (name == "seed" && value == -1) continue;
    if (option != std::end(kOptions)) {
      known.At(option->field).read({place, value, {}}, &request->api);
    } else if (name == "num_predict") {
      // -1 and -2 mean until the end.
      const int64_t most = ReadInteger(place, value, -2, kMostAsked);
      request->api.sampling.max_tokens = std::max<int64_t>(most, 0);
    } else {
      request->api.ignored.push_back(place);
    }
  }
  if (request->api.sampling.top_k < 0) request->api.sampling.top_k = 0;
}

void ReadForm(const FieldValue& at, OllamaRequest* request) {
  Form* form = &request->api.form;
  if (at.value == "") return;
  if (at.value == "json") {
    form->schema = OrderedJson{{"type", "object"}};
  } else if (at.value.is_object()) {
    form->schema = InOrder(at);
    form->schema_field = at.name;
  } else {
    Refuse(at.name, "must be json, or a JSON Schema");
  }
}

// A list that has to be empty.
OllamaField EmptyList(const char* name, const std::string& why) {
  const auto read = [=](const FieldValue& at, OllamaRequest*) {
    if (!at.value.is_array() || !at.value.empty()) Refuse(at.name, why);
  };
  return {{name, Support::kRefused, {{"type", "array"}, {"maxItems", 0}}, why}, read};
}

// A call as OpenAI's protocol has it: with its arguments as text. `text`: the call with its names
// in their order.
Json CallOf(Json call, const OrderedJson& text) {
  if (!call.is_object() || !call.value("function", Json()).is_object()) return call;
  Json& function = call["function"];
  if (function.value("arguments", Json()).is_object()) {
    function["arguments"] = WrittenInOrder(text.at("function").at("arguments"));
  }
  return call;
}

// The content of a message with pictures before its text.
OrderedJson Shown(const FieldValue& images, const std::string& text) {
  if (!images.value.is_array()) Refuse(images.name, "must be a list of files in base64");
  if (images.value.empty()) return text;
  OrderedJson parts = OrderedJson::array();
  for (size_t i = 0; i < images.value.size(); ++i) {
    const std::string place = EntryOf(images.name, i);
    parts.push_back(PicturePart(place, ReadText(place, images.value[i])));
  }
  parts.push_back({{"type", "text"}, {"text", text}});
  return parts;
}

// A message as OpenAI's protocol has it, without its pictures. `text`: as of CallOf.
Json MessageOf(const Json& message, const OrderedJson& text) {
  if (!message.is_object()) return message;
  Json written = message;
  const auto rename = [&](const char* from, const char* to) {
    if (!written.contains(from)) return;
    written[to] = written[from];
    written.erase(from);
  };
  rename("tool_name", "name");
  rename("thinking", "reasoning_content");
  written.erase("images");
  if (written.value("tool_calls", Json()).is_array()) {
    Json& calls = written["tool_calls"];
    const OrderedJson& in_order = text["tool_calls"];  // each search reads all names of the message
    for (size_t i = 0; i < calls.size(); ++i) calls[i] = CallOf(calls[i], in_order[i]);
  }
  if (!written.contains("content")) written["content"] = "";
  return written;
}

void ReadOllamaMessages(const FieldValue& at, OllamaRequest* request) {
  request->only_loads = at.value.is_array() && at.value.empty();
  if (request->only_loads) return;
  Json messages = at.value;
  const OrderedJson text = ParseOrderedJson(FieldText(at.body, at.name), at.name);
  for (size_t i = 0; messages.is_array() && i < messages.size(); ++i) {
    messages[i] = MessageOf(messages[i], text[i]);
  }
  OrderedJson& read = request->api.chat_input.messages;
  read = ReadMessages(at.name, messages, &request->api.ignored);
  for (size_t i = 0; i < read.size(); ++i) {
    const Json images = at.value[i].value("images", Json());
    if (images.is_null()) continue;
    const std::string place = EntryOf(at.name, i) + ".images";
    if (!read[i]["content"].is_string()) Refuse(place, "cannot be used beside pictures in content");
    read[i]["content"] = Shown({place, images, {}}, read[i]["content"]);
    if (read[i]["content"].is_array() && read[i]["role"] != "user") {
      Refuse(place, "must be empty: only the user's messages have pictures");
    }
  }
}

// A field of the answer's request.
template <typename Value>
OllamaField Inner(const char* name, Value ApiRequest::* target, const OrderedJson& schema,
                  Value (*read)(const std::string&, const Json&), const std::string& about) {
  return {{name, Support::kWorks, schema, about},
          [=](const FieldValue& at, OllamaRequest* request) {
            request->api.*target = read(at.name, at.value);
          }};
}

std::string TextOf(const std::string& field, const Json& value) { return ReadText(field, value); }

template <typename Request>
RequestField<Request> KeepAlive() {
  return IgnoredField<Request>(
      "keep_alive", "a server of one model keeps it loaded; with `--models` it is obeyed");
}

Fields CommonFields() {
  const OrderedJson object = {{"type", "object"}};
  return {
      Inner<std::string>("model", &ApiRequest::model, {{"type", "string"}}, TextOf,
                         "may be left out: the server has one model"),
      Inner<bool>("stream", &ApiRequest::stream, {{"type", "boolean"}}, ReadBoolean,
                  "true if absent"),
      {{"format", Support::kWorks, OrderedJson::object(), "`json`, or a JSON Schema"}, ReadForm},
      {{"options", Support::kDiffers, object,
        "`num_predict`, `temperature`, `top_k`, `top_p`, `min_p`, `seed`, `stop`, "
        "`repeat_penalty`, `presence_penalty`, `frequency_penalty`; others are ignored. Those that "
        "are absent have the model's values"},
       ReadOptions},
      KeepAlive<OllamaRequest>(),
      IgnoredField<OllamaRequest>("think", "the model's chat template decides"),
  };
}

Fields With(Fields fields) {
  const Fields common = CommonFields();
  fields.insert(fields.end(), common.begin(), common.end());
  return fields;
}

void ReadTheirTools(const FieldValue& at, OllamaRequest* request) {
  if (at.value.is_array() && at.value.empty()) return;
  request->api.chat_input.tools = ReadTools(at, &request->api.form);
}

OllamaRequest Begin(ApiKind kind, const Sampling& defaults) {
  OllamaRequest request;
  request.api.kind = kind;
  request.api.sampling = defaults;
  request.api.stream = true;
  return request;
}

OllamaRequest Parsed(const FieldTable<OllamaRequest>& fields, std::string_view body,
                     OllamaRequest request) {
  for (std::string& name : fields.Read(ParseBody(body), body, &request)) {
    request.api.ignored.push_back(std::move(name));
  }
  return request;
}

// The seconds of a duration as Go writes it, such as "1h30m"; nullopt if it is not one.
std::optional<double> SecondsOf(std::string_view text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}};
  constexpr std::string_view kNumber = "0123456789.";
  constexpr size_t kLongest = 19;  // characters of a number
  const bool minus = text.starts_with('-');
  if (minus) text.remove_prefix(1);
  double seconds = 0;
  do {
    const size_t digits = std::min(text.find_first_not_of(kNumber), text.size());
    const std::string number(text.substr(0, digits));
    text.remove_prefix(digits);
    const size_t letters = std::min(text.find_first_of(kNumber), text.size());
    const auto* unit = std::ranges::find(kUnits, text.substr(0, letters),
                                         [](const auto& one) { return one.first; });
    text.remove_prefix(letters);
    const bool whole = !number.empty() && number.size() <= kLongest && number.front() != '.' &&
                       std::ranges::count(number, '.') <= 1;
    if (!whole || unit == std::end(kUnits)) return std::nullopt;
    seconds += std::stod(number) * unit->second;
  } while (!text.empty());
  return minus ? -seconds : seconds;
}

}  // namespace

std::optional<std::chrono::seconds> ReadKeepAlive(const Json& value) {
  constexpr double kLongest = 1e9;  // seconds; more is for ever
  const std::string name = "keep_alive";
  double seconds = 0;
  if (!value.is_string()) {
    seconds = ReadReal(name, value);
  } else if (const std::string text = value; text == "-1") {
    seconds = -1;
  } else if (text != "0") {
    const std::optional<double> duration = SecondsOf(text);
    if (!duration) Refuse(name, "must be seconds, or a duration such as \"5m\" or \"1h30m\"");
    seconds = *duration;
  }
  if (seconds < 0 || seconds > kLongest) return std::nullopt;
  return std::chrono::seconds(static_cast<int64_t>(std::ceil(seconds)));
}

const FieldTable<OllamaRequest>& OllamaChatFields() {
  static const FieldTable<OllamaRequest> fields(With({
      Required<OllamaRequest>(
          {{"messages",
            Support::kDiffers,
            {{"type", "array"}, {"items", {{"type", "object"}}}, {"maxItems", kMostMessages}},
            "`role`, `content`, `thinking`, `tool_calls`, `tool_name`; `images` of the user's "
            "messages, if the model reads pictures: PNG or JPEG files in base64. An empty list "
            "asks if the model is loaded"},
           ReadOllamaMessages}),
      {{"tools",
        Support::kDiffers,
        {{"type", "array"}, {"items", Ref("Tool")}, {"maxItems", kMostTools}},
        "of models whose chat template writes calls as JSON"},
       ReadTheirTools},
  }));
  return fields;
}

const FieldTable<OllamaRequest>& OllamaGenerateFields() {
  using Request = OllamaRequest;
  static const FieldTable<Request> fields(With({
      TextField<Request>("prompt", &Request::prompt,
                         "the user's message; an empty one asks if the model is loaded"),
      TextField<Request>("system", &Request::system, "a message before it"),
      BooleanField<Request>("raw", &Request::raw, "continue the prompt, without a chat template"),
      NeutralField<Request>("suffix", "", "a text is only continued"),
      NeutralField<Request>("template", "", "the model has its own"),
      {{"images",
        Support::kWorks,
        {{"type", "array"}, {"items", {{"type", "string"}}}},
        "PNG or JPEG files in base64, for models that read pictures"},
       [](const FieldValue& at, Request* request) {
         request->shown = Shown(at, "");
         if (request->shown.is_string()) request->shown = nullptr;
       }},
      EmptyList("context", "must be empty: send the conversation to /api/chat"),
  }));
  return fields;
}

const FieldTable<EmbeddingRequest>& OllamaEmbedFields() {
  using Request = EmbeddingRequest;
  static const FieldTable<Request> fields({
      ModelField(&Request::model),
      EmbeddingFields().At("input"),
      EmbeddingFields().At("dimensions"),
      IgnoredField<Request>("truncate", "a text that is too long gets status 400"),
      IgnoredField<Request>("options"),
      KeepAlive<Request>(),
  });
  return fields;
}

const FieldTable<EmbeddingRequest>& OllamaEmbeddingFields() {
  using Request = EmbeddingRequest;
  static const FieldTable<Request> fields({
      ModelField(&Request::model),
      Required<Request>({{"prompt", Support::kWorks, {{"type", "string"}}, ""},
                         [](const FieldValue& at, Request* request) {
                           request->inputs = {ReadText(at.name, at.value)};
                         }}),
      IgnoredField<Request>("options"),
      KeepAlive<Request>(),
  });
  return fields;
}

const FieldTable<std::string>& OllamaShowFields() {
  static const FieldTable<std::string> fields({
      {{"model", Support::kWorks, {{"type", "string"}}, "may be left out"},
       [](const FieldValue& at, std::string* name) { *name = ReadText(at.name, at.value); }},
      {{"name", Support::kWorks, {{"type", "string"}}, "the older name of `model`"},
       [](const FieldValue& at, std::string* name) { *name = ReadText(at.name, at.value); }},
      IgnoredField<std::string>("verbose"),
  });
  return fields;
}

OllamaRequest ParseOllamaChat(std::string_view body, const Sampling& defaults) {
  return Parsed(OllamaChatFields(), body, Begin(ApiKind::kChat, defaults));
}

OllamaRequest ParseOllamaGenerate(std::string_view body, const Sampling& defaults) {
  OllamaRequest request = Parsed(OllamaGenerateFields(), body, Begin(ApiKind::kGenerate, defaults));
  request.only_loads = request.prompt.empty();
  if (request.raw) {
    if (!request.system.empty()) Refuse("system", "cannot be used beside raw");
    if (!request.shown.is_null()) Refuse("images", "cannot be used beside raw");
    request.api.kind = ApiKind::kText;
    request.api.prompts = {std::move(request.prompt)};
    return request;
  }
  OrderedJson& messages = request.api.chat_input.messages = OrderedJson::array();
  if (!request.system.empty()) {
    messages.push_back({{"role", "system"}, {"content", request.system}});
  }
  OrderedJson content = request.prompt;
  if (!request.shown.is_null()) {
    content = std::move(request.shown);
    content.back()["text"] = request.prompt;
  }
  messages.push_back({{"role", "user"}, {"content", std::move(content)}});
  return request;
}

}  // namespace rvv_runner
