// SPDX-License-Identifier: Apache-2.0
#include "grammar/validator.h"

#include <cmath>
#include <cstdint>
#include <jsoncons/json.hpp>
#include <jsoncons_ext/jsonschema/jsonschema.hpp>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "grammar/schema.h"
#include "grammar/schema_parts.h"
#include "input/json.h"

namespace rvv_runner {
namespace {

namespace jsonschema = jsoncons::jsonschema;

// Without patternProperties, other properties are not additional ones either.
const char* const kOfPatterns[] = {"patternProperties", "additionalProperties",
                                   "unevaluatedProperties"};

// References to definitions by their older name, and as MoveDefinitions writes them.
constexpr std::string_view kOlder = "#/definitions/";
constexpr std::string_view kRenamed = "#/$defs/definitions.";

// A reference as a URI: other characters in it are percent-encoded.
std::string Encoded(const std::string& reference) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string text;
  for (const char c : reference) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte > ' ' && byte < 0x7F &&
        std::string_view("\"<>\\^`{|}[]").find(c) == std::string::npos) {
      text += c;
    } else {
      text += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return text;
}

// Writes a schema as the library reads it, without what it shall not check.
void Adapt(OrderedJson* schema) {
  schema->erase("pattern");
  const auto reference = schema->find("$ref");
  if (reference != schema->end() && reference->is_string()) {
    std::string target = reference->get<std::string>();
    if (target.starts_with(kOlder)) target.replace(0, kOlder.size(), kRenamed);
    *reference = Encoded(target);
  }
  if (schema->contains("patternProperties")) {
    for (const char* name : kOfPatterns) schema->erase(name);
  }
}

// The library knows the older name in the older drafts alone.
void MoveDefinitions(OrderedJson* schema) {
  if (!schema->is_object() || !schema->contains("definitions")) return;
  const OrderedJson older = schema->at("definitions");
  schema->erase("definitions");
  for (const auto& [name, part] : older.items()) (*schema)["$defs"]["definitions." + name] = part;
}

// Names of drafts are written with and without the # at the end. The library knows no other drafts,
// and reads a schema without a draft by the newest.
void NameDraft(OrderedJson* schema) {
  if (!schema->is_object() || !schema->contains("$schema")) return;
  const OrderedJson named = schema->at("$schema");
  schema->erase("$schema");
  if (!named.is_string()) return;
  const auto plain = [](std::string name) {
    if (name.ends_with('#')) name.pop_back();
    return name;
  };
  using Drafts = jsonschema::schema_version;
  for (const std::string& draft : {Drafts::draft4(), Drafts::draft6(), Drafts::draft7(),
                                   Drafts::draft201909(), Drafts::draft202012()}) {
    if (plain(named.get<std::string>()) == plain(draft)) (*schema)["$schema"] = draft;
  }
}

// Replaces numbers beyond 64 bits, all of which are whole, by the farthest of 64 bits, which is beyond all
// bounds of schemas, too (PreparedSchema). The library compares such numbers as texts of digits, fails if
// the bound has a point, and takes 1e300 for a number with a fraction.
void BoundLargeNumbers(jsoncons::json* value) {
  using Whole = std::numeric_limits<int64_t>;
  const bool large = value->tag() == jsoncons::semantic_tag::bigint ||
                     (value->is_double() && std::abs(value->as<double>()) >= 0x1p63);
  if (large) *value = value->as<double>() < 0 ? Whole::min() : Whole::max();
  if (value->is_array()) {
    for (jsoncons::json& part : value->array_range()) BoundLargeNumbers(&part);
  }
  if (value->is_object()) {
    for (auto& member : value->object_range()) BoundLargeNumbers(&member.value());
  }
}

jsoncons::json Parsed(const std::string& text) {
  jsoncons::json value = jsoncons::json::parse(text);
  BoundLargeNumbers(&value);
  return value;
}

}  // namespace

class Validator::Compiled {
 public:
  explicit Compiled(const OrderedJson& schema)
      : schema_(jsonschema::make_json_schema(Parsed(WrittenInOrder(schema)))) {}

  std::string Fault(const std::string& text) const {
    try {
      std::string fault;
      schema_.validate(Parsed(text), [&](const jsonschema::validation_message& found) {
        const std::string place = found.instance_location().string();
        fault = (place.empty() ? "the answer" : place) + ": " + found.message();
        return jsonschema::walk_result::abort;
      });
      return fault;
    } catch (const std::exception& error) {
      return error.what();
    }
  }

 private:
  jsonschema::json_schema<jsoncons::json> schema_;
};

Validator::Validator(OrderedJson schema, const std::string& where) {
  VisitSchemas(&schema, "", [](OrderedJson* part, const std::string&) { Adapt(part); });
  NameDraft(&schema);
  MoveDefinitions(&schema);
  try {
    compiled_ = std::make_unique<const Compiled>(schema);
  } catch (const std::exception& error) {
    throw GrammarError(where, std::string("is no schema: ") + error.what());
  }
}

Validator::~Validator() = default;

std::string Validator::Fault(const std::string& text) const { return compiled_->Fault(text); }

}  // namespace rvv_runner
