// SPDX-License-Identifier: Apache-2.0
#include "api/conversation.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "input/errors.h"

namespace rvv_runner {
namespace {

using ChatMessage = OrderedJson;

// The base64 in the data URL of a part.
std::string DataOf(const std::string& field, const Json& part) {
  const Json table = part.value("image_url", Json());
  if (!table.is_object() || !table.contains("url")) Refuse(field, "must be an object with a url");
  const std::string& url = ReadText(field + ".url", table["url"]);
  constexpr std::string_view kMark = ";base64,";
  const size_t mark = url.find(kMark);
  if (!url.starts_with("data:") || mark == std::string::npos) {
    Refuse(field + ".url", "must be a data URL in base64: this server fetches no pictures");
  }
  return url.substr(mark + kMark.size());
}

// The content is a string, or a list of parts: it becomes a string unless it has pictures.
OrderedJson Content(const std::string& field, const Json& value) {
  if (value.is_string()) return value;
  if (!value.is_array()) Refuse(field, "must be a string or a list of parts");
  std::string whole;
  OrderedJson parts = OrderedJson::array();
  bool shows = false;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string part = EntryOf(field, i);
    const Json& entry = value[i];
    if (!entry.is_object() || !entry.contains("type")) Refuse(part, "must be a part with a type");
    if (entry["type"] == "image_url") {
      shows = true;
      parts.push_back(PicturePart(part + ".image_url.url", DataOf(part + ".image_url", entry)));
      continue;
    }
    if (entry["type"] != "text") Refuse(part + ".type", "must be text or image_url");
    if (!entry.contains("text")) Refuse(part + ".text", "is missing");
    whole += ReadText(part + ".text", entry["text"]);
    parts.push_back({{"type", "text"}, {"text", entry["text"]}});
  }
  if (shows) return parts;
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
  std::string text = ReadText(place + ".arguments", function.value("arguments", Json("")));
  if (text.empty()) text = "{}";  // as some clients write no arguments
  OrderedJson arguments;
  try {
    // In their order: otherwise the prompt would differ from the answer that wrote the call.
    arguments = ParseOrderedJson(text, place + ".arguments", {.deepest = 32});
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

void ReadCalls(const FieldValue& at, ChatMessage* message) {
  if (!at.value.is_array()) Refuse(at.name, "must be a list");
  for (size_t i = 0; i < at.value.size(); ++i) {
    (*message)["tool_calls"].push_back(ReadCall(EntryOf(at.name, i), at.value[i]));
  }
}

// A field that becomes one of the same name.
RequestField<ChatMessage> Copied(const char* name, Support support, const std::string& about) {
  const auto read = [=](const FieldValue& at, ChatMessage* message) {
    (*message)[name] = ReadText(at.name, at.value);
  };
  return {{name, support, {{"type", "string"}}, about}, read};
}

OrderedJson ContentSchema() {
  return Schema(R"({"anyOf": [
    {"type": "string"},
    {"type": "array", "items": {"type": "object", "required": ["type"], "properties": {
      "type": {"type": "string", "enum": ["text", "image_url"]}, "text": {"type": "string"},
      "image_url": {"type": "object", "properties": {"url": {"type": "string"}}}}}},
    {"type": "null"}]})");
}

}  // namespace

const FieldTable<ChatMessage>& MessageFields() {
  static const FieldTable<ChatMessage> fields({
      {{"role",
        Support::kWorks,
        {{"type", "string"}, {"enum", {"system", "developer", "user", "assistant", "tool"}}},
        "`developer` is read as `system`",
        true},
       [](const FieldValue& at, ChatMessage* m) { (*m)["role"] = Role(at.name, at.value); }},
      {{"content", Support::kDiffers, ContentSchema(),
        "a text, or parts; an assistant's or a tool's message may lack it. A part is a `text`, or "
        "of the user's messages to a model that reads pictures an `image_url`, whose `url` is a "
        "data URL in base64 of a PNG or JPEG file; its `detail` is ignored. Sound and files are "
        "refused"},
       [](const FieldValue& at, ChatMessage* m) { (*m)["content"] = Content(at.name, at.value); }},
      {{"tool_calls", Support::kWorks, ListOfRefs("ToolCall"), ""}, ReadCalls},
      Copied("tool_call_id", Support::kWorks, ""),
      Copied("name", Support::kDiffers, "only templates that read it show it to the model"),
      {{"reasoning_content",
        Support::kOwn,
        {{"type", "string"}},
        "thoughts of an earlier answer, for templates that read them"},
       [](const FieldValue& at, ChatMessage* message) {
         // Templates of gpt-oss and LFM2.5 read the second name.
         for (const char* name : {"reasoning_content", "thinking"}) {
           (*message)[name] = ReadText(at.name, at.value);
         }
       }},
  });
  return fields;
}

OrderedJson PicturePart(const std::string& field, const std::string& base64) {
  return {{"type", "image"}, {"field", field}, {"base64", base64}};
}

OrderedJson ReadMessage(const std::string& field, const Json& value,
                        std::vector<std::string>* ignored) {
  if (!value.is_object()) Refuse(field, "must be an object");
  OrderedJson message = {{"role", ""}, {"content", ""}};
  for (const std::string& name : MessageFields().Read(value, {}, &message, field + ".")) {
    const Json& entry = value[name];
    if (!entry.is_array() || !entry.empty()) ignored->push_back(field + "." + name);
  }
  if (message["content"].is_array() && message["role"] != "user") {
    Refuse(field + ".content", "must be text: only the user's messages have pictures");
  }
  // The template of gpt-oss refuses such thoughts beside a text.
  if (message.contains("tool_calls") && message["content"] != "") message.erase("thinking");
  const bool may_lack = message["role"] == "assistant" || message["role"] == "tool";
  if (!value.contains("content") && !may_lack) Refuse(field + ".content", "is missing");
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
