// SPDX-License-Identifier: Apache-2.0
#include "api/conversation.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "input/errors.h"

namespace rvv_runner {
namespace {

using Message = OrderedJson;

// The content is a string, or a list of text parts.
std::string Content(const std::string& field, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) Refuse(field, "must be a string or a list of parts");
  std::string whole;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string part = EntryOf(field, i);
    const Json& entry = value[i];
    if (!entry.is_object() || !entry.contains("type")) Refuse(part, "must be a part with a type");
    if (entry["type"] != "text") {
      Refuse(part + ".type", "must be text: this model reads only text");
    }
    if (!entry.contains("text")) Refuse(part + ".text", "is missing");
    whole += ReadText(part + ".text", entry["text"]);
  }
  return whole;
}

std::string Role(const std::string& field, const Json& value) {
  const std::string& role = ReadText(field, value);
  // "developer" is OpenAI's newer name for "system".
  if (role == "developer") return "system";
  if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
    Refuse(field, "must be system, user, assistant or tool");
  }
  return role;
}

// An earlier call of a tool. Templates take its arguments as JSON, not as text.
OrderedJson ReadCall(const std::string& field, const Json& value) {
  if (!value.is_object() || !value.contains("function") || !value["function"].is_object()) {
    Refuse(field, "must be a call of a function");
  }
  const Json& function = value["function"];
  const std::string place = field + ".function";
  OrderedJson arguments = OrderedJson::object();
  const std::string text =
      function.contains("arguments") ? ReadText(place + ".arguments", function["arguments"]) : "{}";
  try {
    arguments =
        OrderedJson(ParseJson(text, place + ".arguments", {.deepest = 32, .unique_names = true}));
  } catch (const InputError& error) {
    Refuse(place + ".arguments", std::string("must be JSON: ") + error.what());
  }
  if (!arguments.is_object()) Refuse(place + ".arguments", "must be the JSON of an object");
  OrderedJson call = {{"type", "function"}};
  if (value.contains("id")) call["id"] = ReadText(field + ".id", value["id"]);
  call["function"] = {{"name", ReadToolName(place + ".name", function.value("name", Json("")))},
                      {"arguments", arguments}};
  return call;
}

void ReadCalls(const FieldValue& at, Message* message) {
  if (!at.value.is_array()) Refuse(at.name, "must be a list");
  for (size_t i = 0; i < at.value.size(); ++i) {
    (*message)["tool_calls"].push_back(ReadCall(EntryOf(at.name, i), at.value[i]));
  }
}

// A field that becomes one of the same name.
RequestField<Message> Copied(const char* name, Support support, const std::string& about) {
  const auto read = [=](const FieldValue& at, Message* message) {
    (*message)[name] = ReadText(at.name, at.value);
  };
  return {{name, support, {{"type", "string"}}, about}, read};
}

OrderedJson ContentSchema() {
  return OrderedJson::parse(R"({"anyOf": [
    {"type": "string"},
    {"type": "array", "items": {"type": "object", "required": ["type", "text"], "properties": {
      "type": {"type": "string", "enum": ["text"]}, "text": {"type": "string"}}}},
    {"type": "null"}]})");
}

}  // namespace

const FieldTable<Message>& MessageFields() {
  static const FieldTable<Message> fields({
      {{"role",
        Support::kWorks,
        {{"type", "string"}, {"enum", {"system", "developer", "user", "assistant", "tool"}}},
        "`developer` is read as `system`",
        true},
       [](const FieldValue& at, Message* m) { (*m)["role"] = Role(at.name, at.value); }},
      {{"content", Support::kDiffers, ContentSchema(),
        "a text, or parts of the type `text`; `null` beside `tool_calls`. Images, sound and files "
        "are refused"},
       [](const FieldValue& at, Message* m) { (*m)["content"] = Content(at.name, at.value); }},
      {{"tool_calls", Support::kWorks, ListOfRefs("ToolCall"), ""}, ReadCalls},
      Copied("tool_call_id", Support::kWorks, ""),
      Copied("name", Support::kDiffers, "only templates that read it show it to the model"),
      Copied("reasoning_content", Support::kOwn,
             "thoughts of an earlier answer, for templates that read them"),
  });
  return fields;
}

OrderedJson ReadMessage(const std::string& field, const Json& value,
                        std::vector<std::string>* ignored) {
  if (!value.is_object()) Refuse(field, "must be an object");
  OrderedJson message = {{"role", ""}, {"content", ""}};
  for (const std::string& name : MessageFields().Read(value, {}, &message, field + ".")) {
    const Json& entry = value[name];
    if (!entry.is_array() || !entry.empty()) ignored->push_back(field + "." + name);
  }
  const Json calls = value.value("tool_calls", Json());
  if (!value.contains("content") && !calls.is_array()) Refuse(field + ".content", "is missing");
  return message;
}

OrderedJson ReadMessages(const std::string& field, const Json& value,
                         std::vector<std::string>* ignored) {
  if (!value.is_array() || value.empty()) Refuse(field, "must be a list of at least one message");
  CheckCount(field, value.size(), kMostMessages, "messages");
  OrderedJson messages = OrderedJson::array();
  for (size_t i = 0; i < value.size(); ++i) {
    messages.push_back(ReadMessage(EntryOf(field, i), value[i], ignored));
  }
  return messages;
}

const std::string& ReadToolName(const std::string& field, const Json& value) {
  const std::string& name = ReadText(field, value);
  const bool plain = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-';
  });
  if (name.empty() || name.size() > 64 || !plain) {
    Refuse(field, "must have 1 to 64 letters, digits, _ and -");
  }
  return name;
}

}  // namespace rvv_runner
