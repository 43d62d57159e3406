// SPDX-License-Identifier: Apache-2.0
// Tables of the fields of requests. The server reads bodies by them, and describes itself by them:
// there is no other list of fields.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/values.h"
#include "input/json.h"

namespace rvv_runner {

enum class Support {
  kWorks,    // as the protocol says
  kOwn,      // an addition to the protocol
  kDiffers,  // `about` says how
  kIgnored,  // accepted, and changes nothing
  kRefused,  // accepted only if it changes nothing
};

// The description of a field.
struct FieldAbout {
  std::string name;
  Support support;
  OrderedJson schema;  // JSON Schema of the values that are accepted
  std::string about;   // may be empty
  bool required = false;
};

// A field of a request.
struct FieldValue {
  std::string name;  // its path
  const Json& value;
  std::string_view body;  // the text of the table that has the field, with names in their order
};

template <typename Request>
struct RequestField : FieldAbout {
  std::function<void(const FieldValue&, Request*)> read;
};

template <typename Request>
class FieldTable {
 public:
  using Fields = std::vector<RequestField<Request>>;

  FieldTable(Fields fields) : fields_(std::move(fields)) {}  // NOLINT: a list is a table

  bool Has(const std::string& name) const {
    return std::any_of(fields_.begin(), fields_.end(),
                       [&](const auto& field) { return field.name == name; });
  }

  // A field that the table has.
  const RequestField<Request>& At(const std::string& name) const {
    return *std::find_if(fields_.begin(), fields_.end(),
                         [&](const auto& field) { return field.name == name; });
  }

  // Reads the fields in the order of this table. `prefix` comes before their names in errors. null
  // is the same as no field. Returns the names of the unknown fields of `table`. Throws ApiError
  // (400) that names the field that is wrong, or missing.
  std::vector<std::string> Read(const Json& table, std::string_view body, Request* request,
                                const std::string& prefix = "") const {
    for (const auto& field : fields_) {
      const auto found = table.find(field.name);
      const bool given = found != table.end() && !found->is_null();
      if (given && field.read) field.read({prefix + field.name, *found, body}, request);
      if (!given && field.required) Refuse(prefix + field.name, "is missing");
    }
    std::vector<std::string> unknown;
    for (const auto& [name, value] : table.items()) {
      if (!value.is_null() && !Has(name)) unknown.push_back(name);
    }
    return unknown;
  }

  std::vector<FieldAbout> About() const { return {fields_.begin(), fields_.end()}; }

 private:
  Fields fields_;
};

// A schema that is written here.
inline OrderedJson Schema(std::string_view text) { return ParseOrderedJson(text, "a schema"); }
// Schemas of the description, by their names in it.
inline OrderedJson Ref(const std::string& name) {
  return {{"$ref", "#/components/schemas/" + name}};
}
inline OrderedJson IntegerSchema(int64_t low, int64_t high) {
  return {{"type", "integer"}, {"minimum", low}, {"maximum", high}};
}
inline OrderedJson ListOfRefs(const std::string& name) {
  return {{"type", "array"}, {"items", Ref(name)}};
}

template <typename Request>
RequestField<Request> TextField(const std::string& name, std::string Request::* target,
                                const std::string& about = "") {
  const auto read = [=](const FieldValue& at, Request* request) {
    request->*target = ReadText(at.name, at.value);
  };
  return {{name, Support::kWorks, {{"type", "string"}}, about}, read};
}

template <typename Request>
RequestField<Request> BooleanField(const std::string& name, bool Request::* target,
                                   const std::string& about = "") {
  const auto read = [=](const FieldValue& at, Request* request) {
    request->*target = ReadBoolean(at.name, at.value);
  };
  return {{name, Support::kWorks, {{"type", "boolean"}}, about}, read};
}

template <typename Request>
RequestField<Request> IntegerField(const std::string& name, int64_t low, int64_t high,
                                   int64_t Request::* target, const std::string& about = "") {
  const auto read = [=](const FieldValue& at, Request* request) {
    request->*target = ReadInteger(at.name, at.value, low, high);
  };
  return {{name, Support::kWorks, IntegerSchema(low, high), about}, read};
}

template <typename Request>
RequestField<Request> ModelField(std::string Request::* target) {
  return TextField<Request>("model", target, "may be left out: the server has one model");
}

// A field of any value, which changes nothing.
template <typename Request>
RequestField<Request> IgnoredField(const std::string& name, const std::string& about = "") {
  return {{name, Support::kIgnored, OrderedJson::object(), about}, nullptr};
}

// A field of which only one value is accepted, which changes nothing; null is the same as no field.
template <typename Request>
RequestField<Request> NeutralField(const std::string& name, const Json& neutral,
                                   const std::string& why) {
  const std::string about = "must be " + Written(neutral) + ": " + why;
  const auto read = [=](const FieldValue& at, Request*) {
    if (at.value != neutral) Refuse(at.name, about);
  };
  return {{name, Support::kRefused, SchemaOf(neutral), about}, read};
}

// The same field with another description.
template <typename Request>
RequestField<Request> As(Support support, RequestField<Request> field,
                         const std::string& about = "") {
  field.support = support;
  if (!about.empty()) field.about = about;
  return field;
}

template <typename Request>
RequestField<Request> Required(RequestField<Request> field) {
  field.required = true;
  return field;
}

}  // namespace rvv_runner
