// SPDX-License-Identifier: Apache-2.0
#include "api/api_request.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "api/api_error.h"
#include "api/strict_json.h"
#include "input/errors.h"

namespace rvv_runner {
namespace {

using nlohmann::json;

[[noreturn]] void Refuse(const std::string& field, const std::string& why) {
  throw ApiError(400, "'" + field + "' " + why, field);
}

bool Boolean(const std::string& field, const json& value) {
  if (!value.is_boolean()) Refuse(field, "must be true or false");
  return value.get<bool>();
}

int64_t Integer(const std::string& field, const json& value, int64_t low, int64_t high) {
  // Some clients write 5.0 where 5 is meant.
  const bool whole =
      value.is_number_float() && std::floor(value.get<double>()) == value.get<double>();
  if (!value.is_number_integer() && !whole) Refuse(field, "must be a whole number");
  const double real = value.get<double>();
  if (real < static_cast<double>(low) || real > static_cast<double>(high)) {
    Refuse(field, "must be between " + std::to_string(low) + " and " + std::to_string(high));
  }
  return whole ? static_cast<int64_t>(real) : value.get<int64_t>();
}

double Real(const std::string& field, const json& value) {
  if (!value.is_number()) Refuse(field, "must be a number");
  return value.get<double>();
}

const std::string& Text(const std::string& field, const json& value) {
  if (!value.is_string()) Refuse(field, "must be a string");
  return value.get_ref<const std::string&>();
}

// The content is a string, or a list of text parts.
std::string Content(const std::string& field, const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) Refuse(field, "must be a string or a list of parts");
  std::string whole;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string part = field + "[" + std::to_string(i) + "]";
    const json& entry = value[i];
    if (!entry.is_object() || !entry.contains("type")) Refuse(part, "must be a part with a type");
    if (entry["type"] != "text") {
      Refuse(part + ".type", "must be text: this model reads only text");
    }
    if (!entry.contains("text")) Refuse(part + ".text", "is missing");
    whole += Text(part + ".text", entry["text"]);
  }
  return whole;
}

std::string Role(const std::string& field, const json& value) {
  const std::string& role = Text(field, value);
  // "developer" is OpenAI's newer name for "system".
  if (role == "developer") return "system";
  if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
    Refuse(field, "must be system, user, assistant or tool");
  }
  return role;
}

// The name of a tool, as OpenAI allows it.
const std::string& ToolName(const std::string& field, const json& value) {
  const std::string& name = Text(field, value);
  const bool plain = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-';
  });
  if (name.empty() || name.size() > 64 || !plain) {
    Refuse(field, "must have 1 to 64 letters, digits, _ and -");
  }
  return name;
}

// An earlier call of a tool. Templates take its arguments as JSON, not as text.
OrderedJson ReadCall(const std::string& field, const json& value) {
  if (!value.is_object() || !value.contains("function") || !value["function"].is_object()) {
    Refuse(field, "must be a call of a function");
  }
  const json& function = value["function"];
  const std::string place = field + ".function";
  OrderedJson arguments = OrderedJson::object();
  const std::string text =
      function.contains("arguments") ? Text(place + ".arguments", function["arguments"]) : "{}";
  try {
    arguments =
        OrderedJson(ParseJson(text, place + ".arguments", {.deepest = 32, .unique_names = true}));
  } catch (const InputError& error) {
    Refuse(place + ".arguments", std::string("must be JSON: ") + error.what());
  }
  if (!arguments.is_object()) Refuse(place + ".arguments", "must be the JSON of an object");
  OrderedJson call = {{"type", "function"}};
  if (value.contains("id")) call["id"] = Text(field + ".id", value["id"]);
  call["function"] = {{"name", ToolName(place + ".name", function.value("name", json("")))},
                      {"arguments", arguments}};
  return call;
}

OrderedJson ReadMessage(const std::string& field, const json& value, ApiRequest* request) {
  if (!value.is_object()) Refuse(field, "must be an object");
  if (!value.contains("role")) Refuse(field + ".role", "is missing");
  const std::string role = Role(field + ".role", value["role"]);
  const json calls = value.value("tool_calls", json());
  OrderedJson message = {{"role", role}, {"content", ""}};
  for (const auto& [key, entry] : value.items()) {
    const std::string place = field + "." + key;
    if (entry.is_null() || key == "role") continue;
    if (key == "content") {
      message[key] = Content(place, entry);
    } else if (key == "name" || key == "tool_call_id" || key == "reasoning_content") {
      message[key] = Text(place, entry);
    } else if (key == "tool_calls") {
      if (!entry.is_array()) Refuse(place, "must be a list");
      for (size_t i = 0; i < entry.size(); ++i) {
        message[key].push_back(ReadCall(place + "[" + std::to_string(i) + "]", entry[i]));
      }
    } else if (!entry.is_array() || !entry.empty()) {
      request->ignored.push_back(place);
    }
  }
  if (!value.contains("content") && !calls.is_array()) Refuse(field + ".content", "is missing");
  return message;
}

void ReadMessages(const json& value, ApiRequest* request) {
  if (!value.is_array() || value.empty()) Refuse("messages", "must be a list of messages");
  if (value.size() > kMostMessages) {
    Refuse("messages", "has more than " + std::to_string(kMostMessages) + " messages");
  }
  OrderedJson& messages = request->chat_input.messages = OrderedJson::array();
  for (size_t i = 0; i < value.size(); ++i) {
    messages.push_back(ReadMessage("messages[" + std::to_string(i) + "]", value[i], request));
  }
}

std::vector<int32_t> Ids(const json& value) {
  std::vector<int32_t> ids;
  for (const json& id : value) {
    const int64_t most = std::numeric_limits<int32_t>::max();
    ids.push_back(static_cast<int32_t>(Integer("prompt", id, 0, most)));
  }
  return ids;
}

void ReadPrompts(const json& value, ApiRequest* request) {
  const bool many = value.is_array() && !value.empty() && !value[0].is_number();
  const json list = many ? value : json::array({value});
  if (list.size() > kMostPrompts) {
    Refuse("prompt", "has more than " + std::to_string(kMostPrompts) + " prompts");
  }
  for (const json& prompt : list) {
    if (prompt.is_array() && !prompt.empty()) {
      request->prompts.emplace_back(Ids(prompt));
    } else {
      request->prompts.emplace_back(Text("prompt", prompt));
    }
  }
}

void ReadStop(const json& value, ApiRequest* request) {
  const json list = value.is_array() ? value : json::array({value});
  if (list.size() > kMostStops) {
    Refuse("stop", "has more than " + std::to_string(kMostStops) + " strings");
  }
  for (const json& stop : list) {
    const std::string& text = Text("stop", stop);
    if (text.empty()) Refuse("stop", "holds an empty string");
    if (text.size() > kMostStopBytes) Refuse("stop", "holds a string that is too long");
    request->sampling.stop.push_back(text);
  }
}

void ReadBias(const json& value, ApiRequest* request) {
  if (!value.is_object()) Refuse("logit_bias", "must be an object of token ids");
  for (const auto& [key, bias] : value.items()) {
    const bool number =
        !key.empty() && key.size() <= 9 && key.find_first_not_of("0123456789") == std::string::npos;
    if (!number) Refuse("logit_bias", "must have token ids as names");
    request->sampling.logit_bias[std::stoi(key)] = Real("logit_bias", bias);
  }
}

constexpr size_t kMostSchema = size_t{64} << 10;  // bytes

// A field of the body with the order of its names.
OrderedJson Ordered(const std::string& field, std::string_view body) {
  const std::string_view text = FieldText(body, field);
  if (text.size() > kMostSchema) {
    Refuse(field, "is longer than " + std::to_string(kMostSchema) + " bytes");
  }
  return OrderedJson::parse(text);
}

void CheckNames(const std::string& field, const json& value,
                const std::vector<std::string>& known) {
  if (!value.is_object()) Refuse(field, "must be an object");
  for (const auto& [name, entry] : value.items()) {
    if (std::count(known.begin(), known.end(), name) == 0) {
      Refuse(field + "." + name, "is not supported here");
    }
  }
}

// Checks the format; `body` has the schema's properties in their order.
std::optional<OrderedJson> ReadFormat(const json& value, std::string_view body) {
  const std::string field = "response_format";
  CheckNames(field, value, {"type", "json_schema"});
  const json type = value.value("type", json());
  if (type == "text" && value.size() == 1) return std::nullopt;
  if (type == "json_object" && value.size() == 1) return OrderedJson{{"type", "object"}};
  if (type != "json_schema") {
    Refuse(field + ".type", "must be text, json_object or json_schema");
  }
  const std::string place = field + ".json_schema";
  if (!value.contains("json_schema")) Refuse(place, "is missing");
  const json& about = value["json_schema"];
  CheckNames(place, about, {"name", "description", "schema", "strict"});
  if (!about.contains("schema")) Refuse(kSchemaField, "is missing");
  return Ordered(field, body)["json_schema"]["schema"];
}

Tool ReadTool(const std::string& field, const OrderedJson& value) {
  if (!value.is_object() || value.value("type", OrderedJson()) != "function") {
    Refuse(field + ".type", "must be function: this server has no tools of its own");
  }
  const std::string place = field + ".function";
  const OrderedJson function = value.value("function", OrderedJson());
  if (!function.is_object()) Refuse(place, "must be an object");
  const std::string name = ToolName(place + ".name", json(function.value("name", "")));
  const OrderedJson empty = {{"type", "object"}, {"properties", OrderedJson::object()}};
  OrderedJson parameters = function.value("parameters", empty);
  if (parameters.is_null()) parameters = empty;
  return {name, parameters, place + ".parameters"};
}

// Reads the tools and which of them the answer may or has to call; `body` has them in order.
void ReadTools(const json& table, std::string_view body, ApiRequest* request) {
  const std::string field = "tools";
  if (!table[field].is_array()) Refuse(field, "must be a list");
  if (table[field].size() > kMostTools) {
    Refuse(field, "has more than " + std::to_string(kMostTools) + " tools");
  }
  const OrderedJson tools = Ordered(field, body);
  for (size_t i = 0; i < tools.size(); ++i) {
    request->tools.push_back(ReadTool(field + "[" + std::to_string(i) + "]", tools[i]));
  }
  request->chat_input.tools = tools;
}

void ReadChoice(const json& choice, ApiRequest* request) {
  const std::string field = "tool_choice";
  std::vector<Tool>& tools = request->tools;
  if (choice == "none") {
    tools.clear();
  } else if (choice.is_object()) {
    const json function = choice.value("function", json::object());
    const std::string name =
        Text(field, function.is_object() ? function.value("name", json()) : json());
    std::erase_if(tools, [&](const Tool& tool) { return tool.name != name; });
    if (tools.empty()) Refuse(field, "names no function of tools");
  } else if (choice != "auto" && choice != "required") {
    Refuse(field, "must be none, auto, required, or an object that names a function");
  }
  request->must_call = choice.is_object() || choice == "required";
  if (request->must_call && tools.empty()) Refuse(field, "needs tools");
}

void ReadStreamOptions(const json& value, ApiRequest* request) {
  if (!value.is_object()) Refuse("stream_options", "must be an object");
  for (const auto& [key, entry] : value.items()) {
    const std::string place = "stream_options." + key;
    if (key == "include_usage") {
      request->include_usage = Boolean(place, entry);
    } else if (key != "include_obfuscation" || Boolean(place, entry)) {
      Refuse(place, "is not supported here");
    }
  }
}

using Reader = std::function<void(const json&, ApiRequest*)>;
using Readers = std::map<std::string, Reader>;

Reader Number(const char* field, double Sampling::* target) {
  return [=](const json& value, ApiRequest* r) { r->sampling.*target = Real(field, value); };
}

Reader Count(const char* field, int64_t low, int64_t high, int64_t Sampling::* target) {
  return [=](const json& value, ApiRequest* r) {
    r->sampling.*target = Integer(field, value, low, high);
  };
}

// Accepts only the neutral value of a field, which changes nothing.
Reader Only(const char* field, const json& neutral, const char* why) {
  return [=](const json& value, ApiRequest*) {
    if (value != neutral) Refuse(field, why);
  };
}

constexpr int64_t kMany = int64_t{1} << 30;
constexpr int64_t kMostTop = 20;

Readers CommonReaders() {
  const Reader ignored = [](const json&, ApiRequest*) {};
  const char* old = "is not supported here: use tools and tool_choice";
  Readers readers = {
      {"model", [](const json& v, ApiRequest* r) { r->model = Text("model", v); }},
      {"temperature", Number("temperature", &Sampling::temperature)},
      {"top_p", Number("top_p", &Sampling::top_p)},
      {"min_p", Number("min_p", &Sampling::min_p)},
      {"top_k", Count("top_k", -1, kMany, &Sampling::top_k)},
      {"repetition_penalty", Number("repetition_penalty", &Sampling::repetition_penalty)},
      {"presence_penalty", Number("presence_penalty", &Sampling::presence_penalty)},
      {"frequency_penalty", Number("frequency_penalty", &Sampling::frequency_penalty)},
      {"max_tokens", Count("max_tokens", 1, kMany, &Sampling::max_tokens)},
      {"n", [](const json& v, ApiRequest* r) { r->n = Integer("n", v, 1, kMostAnswers); }},
      {"stop", ReadStop},
      {"logit_bias", ReadBias},
      {"stream", [](const json& v, ApiRequest* r) { r->stream = Boolean("stream", v); }},
      {"stream_options", ReadStreamOptions},
      {"seed",
       [](const json& v, ApiRequest* r) {
         constexpr int64_t kExact = int64_t{1} << 53;
         r->sampling.seed = static_cast<uint64_t>(Integer("seed", v, -kExact, kExact));
       }},
  };
  // These fields do not change answers.
  for (const char* field : {"user", "metadata", "service_tier", "safety_identifier",
                            "prompt_cache_key", "prompt_cache_retention"}) {
    readers.emplace(field, ignored);
  }
  readers.emplace("store", Only("store", false, "must be false: no answer is stored"));
  readers.emplace("functions", Only("functions", json::array(), old));
  readers.emplace("function_call", Only("function_call", "none", old));
  return readers;
}

Readers ChatReaders() {
  Readers readers = CommonReaders();
  readers["messages"] = ReadMessages;
  // ParseApiRequest reads them.
  for (const char* field : {"response_format", "tools", "tool_choice"}) {
    readers[field] = [](const json&, ApiRequest*) {};
  }
  readers["parallel_tool_calls"] = [](const json& v, ApiRequest* r) {
    r->parallel = Boolean("parallel_tool_calls", v);
  };
  readers["max_completion_tokens"] =
      Count("max_completion_tokens", 1, kMany, &Sampling::max_tokens);
  readers["modalities"] =
      Only("modalities", json::array({"text"}), "must be [\"text\"]: this model writes only text");
  readers["logprobs"] = [](const json& v, ApiRequest* r) {
    if (Boolean("logprobs", v)) {
      r->sampling.top_logprobs = std::max<int64_t>(0, r->sampling.top_logprobs);
    }
  };
  readers["top_logprobs"] = Count("top_logprobs", 0, kMostTop, &Sampling::top_logprobs);
  return readers;
}

Readers CompletionReaders() {
  Readers readers = CommonReaders();
  readers["prompt"] = ReadPrompts;
  readers["logprobs"] = Count("logprobs", 0, kMostTop, &Sampling::top_logprobs);
  readers["echo"] = Only("echo", false, "must be false: the prompt is not repeated");
  readers["suffix"] = Only("suffix", "", "is not supported here");
  readers["best_of"] = [](const json& v, ApiRequest*) { Integer("best_of", v, 1, 1); };
  return readers;
}

bool Named(const json& body, const char* field) {
  return body.contains(field) && !body[field].is_null();
}

// Checks that depend on several fields.
void CheckTogether(const json& body, const ApiRequest& request) {
  const char* needed = request.chat ? "messages" : "prompt";
  if (!Named(body, needed)) Refuse(needed, "is missing");
  if (Named(body, "max_tokens") && Named(body, "max_completion_tokens")) {
    Refuse("max_tokens", "and max_completion_tokens mean the same: give only one");
  }
  if (Named(body, "stream_options") && !request.stream) {
    Refuse("stream_options", "needs stream to be true");
  }
  if (request.chat && Named(body, "top_logprobs") && body.value("logprobs", json()) != true) {
    Refuse("top_logprobs", "needs logprobs to be true");
  }
  if (request.schema && !request.tools.empty()) {
    Refuse("response_format", "cannot be used beside tools");
  }
  if (request.answers() > static_cast<size_t>(kMostAnswers)) {
    Refuse("n",
           "times the number of prompts is more than " + std::to_string(kMostAnswers) + " answers");
  }
}

}  // namespace

ApiRequest ParseApiRequest(bool chat, std::string_view body, const Sampling& defaults,
                           bool strict) {
  static const Readers kChat = ChatReaders();
  static const Readers kCompletion = CompletionReaders();
  const json table = ParseBody(body);
  if (!table.is_object()) throw ApiError(400, "the body must be a JSON object");
  ApiRequest request;
  request.chat = chat;
  request.sampling = defaults;
  // The default of OpenAI's service.
  if (!chat) request.sampling.max_tokens = 16;
  const Readers& readers = chat ? kChat : kCompletion;
  for (const auto& [field, value] : table.items()) {
    const auto reader = readers.find(field);
    // null is the same as no field.
    if (value.is_null() && field != "messages" && field != "prompt") continue;
    if (reader != readers.end()) {
      reader->second(value, &request);
    } else if ((chat ? kCompletion : kChat).contains(field)) {
      Refuse(field, "is not supported here: it belongs to the other kind of completions");
    } else {
      request.ignored.push_back(field);
    }
  }
  if (chat && Named(table, "response_format")) {
    request.schema = ReadFormat(table["response_format"], body);
  }
  if (chat && Named(table, "tools")) ReadTools(table, body, &request);
  if (chat && Named(table, "tool_choice")) ReadChoice(table["tool_choice"], &request);
  CheckTogether(table, request);
  if (strict && !request.ignored.empty()) Refuse(request.ignored.front(), "is not supported here");
  if (request.sampling.top_k < 0) request.sampling.top_k = 0;  // both mean all
  return request;
}

}  // namespace rvv_runner
