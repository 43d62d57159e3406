// SPDX-License-Identifier: Apache-2.0
#include "api/tools.h"

#include <algorithm>

#include "api/conversation.h"
#include "api/strict_json.h"

namespace rvv_runner {
namespace {

constexpr size_t kMostSchema = size_t{64} << 10;  // bytes

Tool ReadTool(const std::string& field, const OrderedJson& value) {
  if (!value.is_object() || value.value("type", OrderedJson()) != "function") {
    Refuse(field + ".type", "must be function: this server has no tools of its own");
  }
  return ToolOf(field + ".function", value.value("function", OrderedJson()));
}

// The name of a function, which /v1/responses has without the table "function" around it.
std::string NameOf(const std::string& field, const Json& choice) {
  if (!choice.is_object()) Refuse(field, "must name a function");
  const Json function = choice.value("function", choice);
  return ReadText(field, function.is_object() ? function.value("name", Json()) : Json());
}

}  // namespace

OrderedJson InOrder(const FieldValue& at) {
  const std::string_view text = FieldText(at.body, at.name);
  CheckCount(at.name, text.size(), kMostSchema, "bytes");
  return ParseOrderedJson(text, at.name);
}

Tool ToolOf(const std::string& place, const OrderedJson& function) {
  if (!function.is_object()) Refuse(place, "must be an object");
  const std::string name =
      ReadToolName(place + ".name", Json(function.value("name", OrderedJson(""))));
  const OrderedJson empty = {{"type", "object"}, {"properties", OrderedJson::object()}};
  OrderedJson parameters = function.value("parameters", empty);
  if (parameters.is_null()) parameters = empty;
  const bool strict = function.value("strict", OrderedJson()) == true;
  return {name, parameters, place + ".parameters", strict};
}

void ReadFormat(const FieldValue& at, Form* form) {
  CheckNames(at.name, at.value, {"type", "json_schema"});
  const Json type = at.value.value("type", Json());
  if (type == "text" && at.value.size() == 1) return;
  if (type == "json_object" && at.value.size() == 1) {
    form->schema = OrderedJson{{"type", "object"}};
    return;
  }
  if (type != "json_schema") {
    Refuse(at.name + ".type", "must be text, json_object or json_schema");
  }
  const std::string place = at.name + ".json_schema";
  if (!at.value.contains("json_schema")) Refuse(place, "is missing");
  const Json& about = at.value["json_schema"];
  CheckNames(place, about, {"name", "description", "schema", "strict"});
  form->schema_field = place + ".schema";
  if (!about.contains("schema")) Refuse(form->schema_field, "is missing");
  form->schema = InOrder(at)["json_schema"]["schema"];
  form->strict = about.value("strict", Json()) == true;
}

OrderedJson ReadTools(const FieldValue& at, Form* form) {
  if (!at.value.is_array()) Refuse(at.name, "must be a list");
  CheckCount(at.name, at.value.size(), kMostTools, "tools");
  OrderedJson tools = InOrder(at);
  for (size_t i = 0; i < tools.size(); ++i) {
    form->tools.push_back(ReadTool(EntryOf(at.name, i), tools[i]));
  }
  return tools;
}

void ReadChoice(const FieldValue& at, Form* form) {
  std::vector<Tool>& tools = form->tools;
  Json choice = at.value;
  const auto keep = [&](const std::vector<std::string>& names) {
    std::erase_if(tools, [&](const Tool& tool) {
      return std::find(names.begin(), names.end(), tool.name) == names.end();
    });
    if (tools.empty()) Refuse(at.name, "names no function of tools");
  };
  if (choice.is_object() && choice.value("type", Json()) == "allowed_tools") {
    const Json nested = choice.value("allowed_tools", choice);
    const Json list = nested.is_object() ? nested.value("tools", Json()) : Json();
    if (!list.is_array()) Refuse(at.name, "must have a list of tools");
    std::vector<std::string> names;
    for (const Json& tool : list) names.push_back(NameOf(at.name, tool));
    keep(names);
    choice = nested.value("mode", Json());
    if (choice != "auto" && choice != "required") {
      Refuse(at.name, "must have a mode: auto or required");
    }
  } else if (choice.is_object()) {
    keep({NameOf(at.name, choice)});
  } else if (choice == "none") {
    tools.clear();
  } else if (choice != "auto" && choice != "required") {
    Refuse(at.name, "must be none, auto, required, or an object that names functions");
  }
  form->must_call = choice.is_object() || choice == "required";
  if (form->must_call && tools.empty()) Refuse(at.name, "needs tools");
}

}  // namespace rvv_runner
