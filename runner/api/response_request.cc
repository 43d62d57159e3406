// SPDX-License-Identifier: Apache-2.0
#include "api/response_request.h"

#include "api/conversation.h"
#include "api/strict_json.h"
#include "api/tools.h"

namespace rvv_runner {
namespace {

using ResponseField = RequestField<ResponseRequest>;

// A text, or parts with texts, as the text of a message of a chat.
std::string TextOfParts(const std::string& field, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) Refuse(field, "must be a string or a list of parts");
  std::string whole;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string part = EntryOf(field, i);
    if (!value[i].is_object()) Refuse(part, "must be a part with a type");
    const Json type = value[i].value("type", Json());
    if (type != "input_text" && type != "output_text") {
      Refuse(part + ".type", "must be input_text or output_text: this model reads only text");
    }
    whole += ReadText(part + ".text", value[i].value("text", Json()));
  }
  return whole;
}

// The items of an input as messages of a chat.
class Conversation {
 public:
  explicit Conversation(std::vector<std::string>* ignored) : ignored_(ignored) {}

  void Add(const std::string& field, const Json& item) {
    if (!item.is_object()) Refuse(field, "must be an object");
    const Json type = item.value("type", Json("message"));
    if (type == "message") {
      AddMessage(field, item);
    } else if (type == "function_call") {
      AddCall(field, item);
    } else if (type == "function_call_output") {
      AddResult(field, item);
    } else if (type == "reasoning") {
      // Chat templates drop the thoughts of earlier answers.
      ignored_->push_back(field);
    } else {
      Refuse(field + ".type",
             "must be message, function_call, function_call_output or reasoning: " +
                 std::string("no answer is stored; send whole items"));
    }
  }

  OrderedJson Take() { return std::move(messages_); }

 private:
  void AddMessage(const std::string& field, const Json& item) {
    if (!item.contains("content")) Refuse(field + ".content", "is missing");
    const std::string text = TextOfParts(field + ".content", item["content"]);
    const Json message = {{"role", item.value("role", Json())}, {"content", text}};
    messages_.push_back(ReadMessage(field, message, ignored_));
  }

  // Calls in a row, and a text before them, are one message.
  void AddCall(const std::string& field, const Json& item) {
    const Json function = {{"name", item.value("name", Json())},
                           {"arguments", item.value("arguments", Json("{}"))}};
    const Json call = {{"id", ReadText(field + ".call_id", item.value("call_id", Json()))},
                       {"function", function}};
    const Json calls = Json::array({call});
    const Json message = {{"role", "assistant"}, {"tool_calls", calls}};
    OrderedJson read = ReadMessage(field, message, ignored_);
    if (!messages_.empty() && messages_.back()["role"] == "assistant") {
      messages_.back()["tool_calls"].push_back(read["tool_calls"][0]);
    } else {
      messages_.push_back(std::move(read));
    }
  }

  void AddResult(const std::string& field, const Json& item) {
    if (!item.contains("output")) Refuse(field + ".output", "is missing");
    const std::string text = TextOfParts(field + ".output", item["output"]);
    const Json message = {
        {"role", "tool"}, {"content", text}, {"tool_call_id", item.value("call_id", Json())}};
    messages_.push_back(ReadMessage(field, message, ignored_));
  }

  std::vector<std::string>* ignored_;
  OrderedJson messages_ = OrderedJson::array();
};

void ReadInput(const FieldValue& at, ResponseRequest* request) {
  const Json whole = {{"role", "user"}, {"content", at.value}};
  const Json items = at.value.is_string() ? Json::array({whole}) : at.value;
  if (!items.is_array() || items.empty()) Refuse(at.name, "must be a string or a list of items");
  CheckCount(at.name, items.size(), kMostMessages, "items");
  Conversation conversation(&request->api.ignored);
  for (size_t i = 0; i < items.size(); ++i) conversation.Add(EntryOf(at.name, i), items[i]);
  request->api.chat_input.messages = conversation.Take();
  if (request->api.chat_input.messages.empty()) Refuse(at.name, "has no message");
}

// Tools without the table "function" around each of them.
void ReadFlatTools(const FieldValue& at, ResponseRequest* request) {
  if (!at.value.is_array()) Refuse(at.name, "must be a list");
  CheckCount(at.name, at.value.size(), kMostTools, "tools");
  const OrderedJson tools = InOrder(at);
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string place = EntryOf(at.name, i);
    OrderedJson function = tools[i];
    if (!function.is_object() || function.value("type", OrderedJson()) != "function") {
      Refuse(place + ".type", "must be function: this server has no tools of its own");
    }
    request->api.form.tools.push_back(ToolOf(place, function));
    function.erase("type");
    request->api.chat_input.tools.push_back({{"type", "function"}, {"function", function}});
  }
  request->repeated["tools"] = tools;
}

void ReadFlatChoice(const FieldValue& at, ResponseRequest* request) {
  ReadChoice(at, &request->api.form);
  request->repeated["tool_choice"] = at.value;
}

void ReadTextFormat(const FieldValue& at, ResponseRequest* request) {
  CheckNames(at.name, at.value, {"format", "verbosity"});
  const Json format = at.value.value("format", Json());
  if (format.is_null()) return;
  const std::string place = at.name + ".format";
  CheckNames(place, format, {"type", "name", "description", "schema", "strict"});
  const Json type = format.value("type", Json());
  Form& form = request->api.form;
  if (type == "json_object") {
    form.schema = OrderedJson{{"type", "object"}};
  } else if (type == "json_schema") {
    form.schema_field = place + ".schema";
    if (!format.contains("schema")) Refuse(form.schema_field, "is missing");
    form.schema = InOrder(at)["format"]["schema"];
    form.strict = format.value("strict", Json()) == true;
  } else if (type != "text") {
    Refuse(place + ".type", "must be text, json_object or json_schema");
  }
  request->repeated["text"] = InOrder(at);
}

void ReadTopLogprobs(const FieldValue& at, ResponseRequest*) {
  ReadInteger(at.name, at.value, 0, 0);
}

// A field of the sampling, as in other requests.
ResponseField Shared(const std::string& name) {
  const RequestField<ApiRequest>& field = RequestFields(ApiKind::kChat).At(name);
  const auto read = [&field](const FieldValue& at, ResponseRequest* request) {
    field.read(at, &request->api);
  };
  return {field, field.read ? std::function(read) : nullptr};
}

ResponseField Renamed(const std::string& name, ResponseField field) {
  field.name = name;
  return field;
}

FieldTable<ResponseRequest>::Fields MakeFields() {
  const OrderedJson input = {{"anyOf", {{{"type", "string"}}, ListOfRefs("ResponseItem")}}};
  const OrderedJson tools = ListOfRefs("ResponseTool");
  const char* stored = "no answer is stored; send the whole conversation as input";
  const char* truncation = "a conversation that is too long is refused";
  FieldTable<ResponseRequest>::Fields fields = {
      Shared("model"),
      Required<ResponseRequest>(
          {{"input", Support::kDiffers, input,
            "a text, or items of the types `message`, `function_call`, `function_call_output` and "
            "`reasoning`, which is ignored. Images, sound and files are refused"},
           ReadInput}),
      TextField<ResponseRequest>("instructions", &ResponseRequest::instructions,
                                 "the first system message"),
      Renamed("max_output_tokens", Shared("max_completion_tokens")),
      {{"tools", Support::kDiffers, tools, "functions; no tools of the server's own"},
       ReadFlatTools},
      {{"tool_choice", Support::kWorks, Ref("ResponseToolChoice"), ""}, ReadFlatChoice},
      Shared("parallel_tool_calls"),
      {{"text", Support::kDiffers, Ref("ResponseText"),
        "`format` as `response_format` of chats; `verbosity` is ignored"},
       ReadTextFormat},
      Shared("stream"),
      Shared("temperature"),
      Shared("top_p"),
      Shared("top_k"),
      Shared("min_p"),
      As(Support::kOwn, Shared("seed")),
      NeutralField<ResponseRequest>("previous_response_id", nullptr, stored),
      NeutralField<ResponseRequest>("conversation", nullptr, stored),
      NeutralField<ResponseRequest>("prompt", nullptr, "use instructions"),
      NeutralField<ResponseRequest>("background", false, "an answer is given at once"),
      NeutralField<ResponseRequest>("truncation", "disabled", truncation),
      {{"top_logprobs", Support::kRefused, SchemaOf(0), "must be 0"}, ReadTopLogprobs},
      IgnoredField<ResponseRequest>("store", "no answer is stored; `store` of an answer is false"),
      IgnoredField<ResponseRequest>("reasoning", "the model thinks as its template makes it"),
      IgnoredField<ResponseRequest>("include", "nothing is added"),
      IgnoredField<ResponseRequest>("stream_options"),
      IgnoredField<ResponseRequest>("max_tool_calls", "of the server's own tools"),
  };
  for (const char* name : kUnusedFields) fields.push_back(Shared(name));
  return fields;
}

}  // namespace

const FieldTable<ResponseRequest>& ResponseFields() {
  static const FieldTable<ResponseRequest> fields(MakeFields());
  return fields;
}

ResponseRequest ParseResponseRequest(std::string_view body, const Sampling& defaults) {
  ResponseRequest request;
  ApiRequest& api = request.api;
  api.kind = ApiKind::kResponse;
  api.sampling = defaults;
  const Json table = ParseBody(body);
  for (const std::string& name : ResponseFields().Read(table, body, &request)) {
    api.ignored.push_back(name);
  }
  // OpenAI's client stores by default: that no answer is stored has to be said.
  if (table.value("store", Json()) == true) api.ignored.push_back("store");
  if (!request.instructions.empty()) {
    OrderedJson& messages = api.chat_input.messages;
    messages.insert(messages.begin(),
                    OrderedJson{{"role", "system"}, {"content", request.instructions}});
  }
  if (api.sampling.top_k < 0) api.sampling.top_k = 0;
  for (const char* name :
       {"instructions", "temperature", "top_p", "max_output_tokens", "metadata", "user"}) {
    if (table.contains(name)) request.repeated[name] = table[name];
  }
  return request;
}

}  // namespace rvv_runner
