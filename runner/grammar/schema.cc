// SPDX-License-Identifier: Apache-2.0
#include "grammar/schema.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "grammar/joined_schema.h"
#include "grammar/pattern.h"
#include "grammar/schema_parts.h"

namespace rvv_runner {
namespace {

using Names = std::set<std::string_view>;

const Names kRefused = {"$anchor", "additionalItems", "$dynamicRef", "$recursiveRef",
                        "$dynamicAnchor"};
// Keywords that no grammar expresses. The whole answer can be checked against them.
const Names kUnguided = {"not",
                         "if",
                         "then",
                         "else",
                         "uniqueItems",
                         "contains",
                         "minContains",
                         "maxContains",
                         "dependencies",
                         "dependentRequired",
                         "dependentSchemas"};
// XGrammar reads the first of these and ignores all other keywords beside it.
const std::vector<std::string_view> kAlone = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};
const Names kCounts = {"minItems",      "maxItems",  "minProperties",
                       "maxProperties", "minLength", "maxLength"};
// XGrammar writes bounds as whole numbers of 64 bits, and with six digits after the point.
constexpr double kLargestBound = 9007199254740992;  // 2^53: whole numbers below are exact
constexpr double kLeastRange = 2e-6;
// Formats of the standard that XGrammar does not know. Others, such as int32, are annotations.
const Names kUnknownFormats = {"idn-email", "idn-hostname", "iri", "iri-reference", "regex"};

// Bounds on what XGrammar's compiler, which cannot be interrupted, gets to do.
constexpr size_t kMostParts = 1000;
constexpr size_t kMostValues = 500;       // of one enum
constexpr size_t kMostCounted = 64;       // properties where minProperties or maxProperties counts
constexpr int64_t kMostOfPatterns = 512;  // characters, see Pattern
constexpr size_t kMostCopied = 1 << 18;   // bytes that stand in several parts of anyOf
constexpr int kMostMeant = 64;            // references whose target is copied

constexpr const char* kInexpressible = "cannot be expressed by this server's grammars";

// A format alone is an annotation.
bool Asserts(std::string_view keyword) { return Bounds(keyword) && keyword != "format"; }

class SchemaPreparation {
 public:
  SchemaPreparation(std::string where, std::vector<std::string>* unguided)
      : where_(std::move(where)), unguided_(unguided) {}

  OrderedJson Done(OrderedJson schema, const std::string& type) {
    if (!type.empty()) Restrict(&schema, type);
    VisitSchemas(&schema, "",
                 [&](OrderedJson* part, const std::string& place) { LeaveUnguided(part, place); });
    whole_ = &schema;
    given_ = schema;
    Visit(&schema, "", "");
    for (const auto& [place, target] : references_) {
      if (!visited_.contains(target)) Refuse(place + "/$ref", "does not point to a schema in it");
    }
    return schema;
  }

 private:
  // `place`: the JSON pointer of a keyword in the schema.
  [[noreturn]] void Refuse(const std::string& place, const std::string& why) const {
    throw GrammarError(PathOf(place), why);
  }

  std::string PathOf(std::string place) const {
    std::replace(place.begin(), place.end(), '/', '.');
    return where_ + place;
  }

  // Leaves a keyword of a schema out, or refuses it.
  void Leave(OrderedJson* schema, const std::string& name, const std::string& place,
             const std::string& why) const {
    const std::string keyword = place + "/" + name;
    if (unguided_ == nullptr) Refuse(keyword, why);
    unguided_->push_back(PathOf(keyword));
    schema->erase(name);
  }

  // Leaves out the keywords that no grammar can express.
  void LeaveUnguided(OrderedJson* schema, const std::string& place) const {
    if (schema->value("uniqueItems", OrderedJson()) == false) schema->erase("uniqueItems");
    if (!schema->contains("contains")) schema->erase("minContains");
    // What zod writes for a value that never occurs.
    const OrderedJson never = {{"not", OrderedJson::object()}};
    if (*schema == never) *schema = false;
    if (unguided_ == nullptr || !schema->is_object()) return;
    for (const std::string_view name : kUnguided) {
      if (schema->contains(name)) Leave(schema, std::string(name), place, kInexpressible);
    }
  }

  // Permits values of one type alone, unless a keyword that stands alone says which they are.
  void Restrict(OrderedJson* schema, const std::string& type) const {
    if (*schema == true) *schema = OrderedJson::object();
    const bool described = std::any_of(kAlone.begin(), kAlone.end(),
                                       [&](auto name) { return schema->contains(name); });
    if (!schema->is_object() || (described && !schema->contains("type"))) return;
    if (schema->contains("type") && !Permits(*schema, type)) Refuse("/type", "must be " + type);
    (*schema)["type"] = type;
  }

  // `type`: of a schema that names none; may be empty.
  void Visit(OrderedJson* schema, const std::string& place, const std::string& type) {
    visited_.insert("#" + place);
    if (visited_.size() > kMostParts) {
      Refuse(place, "is one part too many: a schema has at most " + std::to_string(kMostParts));
    }
    if (schema->is_boolean()) return;
    if (!schema->is_object()) Refuse(place, "must be a schema: an object, true or false");
    JoinAllOf(schema);  // first: what it joins is checked like the rest
    for (const auto& [name, value] : schema->items()) {
      const bool nested = name == "$id" && !place.empty();
      if (kRefused.contains(name) || kUnguided.contains(name) || nested) {
        Refuse(place + "/" + name, kInexpressible);
      }
    }
    if (schema->value("type", OrderedJson()) == OrderedJson::array()) {
      Refuse(place + "/type", "must be a type, or a list of at least one");
    }
    for (const std::string_view name : kCounts) {
      const OrderedJson count = schema->value(std::string(name), OrderedJson(0));
      if (!count.is_number_integer() || count.get<int64_t>() < 0) {
        Refuse(place + "/" + std::string(name), "must be a whole number of 0 or more");
      }
    }
    JoinBeside(schema, place);
    VisitParts(schema, place);
    ExpressOneOf(schema);
    const auto alone = std::find_if(kAlone.begin(), kAlone.end(),
                                    [&](auto name) { return schema->contains(name); });
    if (alone != kAlone.end()) return CheckAlone(schema, *alone, place);
    if (!HasAny(*schema, Bounds)) return;
    if (!schema->contains("type") && !type.empty()) (*schema)["type"] = type;
    if (!schema->contains("type")) {
      (*schema)["type"] = {"object", "array", "string", "number", "boolean", "null"};
    }
    if (Permits(*schema, "object")) VisitObject(schema, place);
    CheckRange(*schema, place);
    const bool listed = schema->contains("items") || schema->contains("prefixItems") ||
                        schema->contains("unevaluatedItems");
    // XGrammar allows no items that the schema does not mention.
    if (Permits(*schema, "array") && !listed) (*schema)["items"] = true;
    VisitString(schema, place);
  }

  // Refuses bounds between which XGrammar's grammar has no number.
  void CheckRange(const OrderedJson& schema, const std::string& place) const {
    constexpr double kNone = std::numeric_limits<double>::infinity();
    double least = -kNone;
    double most = kNone;
    std::string_view last;
    for (const std::string_view name :
         {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
      if (!schema.contains(name)) continue;
      last = name;
      const OrderedJson& bound = schema.at(name);
      if (!bound.is_number()) Refuse(place + "/" + std::string(name), "must be a number");
      const auto value = bound.get<double>();
      if (std::abs(value) > kLargestBound) {
        Refuse(place + "/" + std::string(name), "is beyond 9007199254740992");
      }
      const bool lower = name.ends_with("inimum");
      lower ? least = std::max(least, value) : most = std::min(most, value);
    }
    const bool excludes =
        schema.contains("exclusiveMinimum") || schema.contains("exclusiveMaximum");
    if (least > most || (most - least < kLeastRange && (least < most || excludes))) {
      Refuse(place + "/" + std::string(last), "leaves no number that a grammar of this server has");
    }
  }

  void VisitString(OrderedJson* schema, const std::string& place) {
    const OrderedJson format = schema->value("format", OrderedJson(""));
    if (!format.is_string() || kUnknownFormats.contains(format.get<std::string>())) {
      Refuse(place + "/format", kInexpressible);
    }
    if (!schema->contains("pattern")) return;
    if (!(*schema)["pattern"].is_string()) Refuse(place + "/pattern", "must be a string");
    if (schema->contains("format")) Refuse(place + "/pattern", "cannot be expressed beside format");
    (*schema)["pattern"] = Expressed((*schema)["pattern"].get<std::string>(), place + "/pattern");
  }

  std::string Expressed(const std::string& text, const std::string& place) {
    const Pattern pattern = ReadPattern(text);
    if (!pattern.wrong.empty()) Refuse(place, pattern.wrong);
    of_patterns_ += pattern.size;
    if (of_patterns_ > kMostOfPatterns) {
      Refuse(place,
             "matches too many characters: repetitions of all patterns of a schema may add "
             "up to " +
                 std::to_string(kMostOfPatterns));
    }
    return pattern.text;
  }

  void VisitParts(OrderedJson* schema, const std::string& place) {
    for (const char* name : {"properties", "patternProperties", "$defs", "definitions"}) {
      if (!schema->contains(name)) continue;
      if (!(*schema)[name].is_object()) Refuse(place + "/" + name, "must be an object");
      for (auto& [key, part] : (*schema)[name].items()) {
        Visit(&part, place + "/" + name + "/" + key, "");
      }
    }
    for (const char* name : {"anyOf", "oneOf", "allOf", "prefixItems"}) {
      if (!schema->contains(name)) continue;
      OrderedJson& parts = (*schema)[name];
      if (!parts.is_array()) Refuse(place + "/" + name, "must be a list");
      const auto never = std::count(parts.begin(), parts.end(), OrderedJson(false));
      const bool some = never > 0 && never < std::ssize(parts);
      if (some && (name == std::string_view("anyOf") || name == std::string_view("oneOf"))) {
        std::erase(parts.get_ref<OrderedJson::array_t&>(), OrderedJson(false));
      }
      if (parts.empty() && name != std::string_view("prefixItems")) {
        Refuse(place + "/" + name, "is an empty list, which no answer fits");
      }
      for (size_t i = 0; i < parts.size(); ++i) {
        Visit(&parts[i], place + "/" + name + "/" + std::to_string(i), "");
      }
    }
    for (const char* name : {"additionalProperties", "propertyNames", "items", "unevaluatedItems",
                             "unevaluatedProperties"}) {
      const std::string type = name == std::string_view("propertyNames") ? "string" : "";
      if (schema->contains(name)) Visit(&(*schema)[name], place + "/" + name, type);
    }
  }

  // The schema of `whole` that a reference in another one's place stands for.
  static const OrderedJson& Meant(const OrderedJson& whole, const OrderedJson& schema) {
    if (!schema.is_object() || !schema.contains("$ref")) return schema;
    const OrderedJson& target = schema["$ref"];
    if (!target.is_string() || !target.get_ref<const std::string&>().starts_with("#/"))
      return schema;
    try {
      return whole.at(OrderedJson::json_pointer(target.get<std::string>().substr(1)));
    } catch (const OrderedJson::exception&) {
      return schema;  // no pointer, or to nothing
    }
  }

  // True if each schema has other types.
  bool DifferInType(const OrderedJson& parts) const {
    std::set<std::string> seen;
    return std::all_of(parts.begin(), parts.end(), [&](const OrderedJson& given) {
      const OrderedJson& part = Meant(*whole_, given);
      if (!part.is_object() || !part.contains("type")) return false;
      const OrderedJson& types = part["type"];
      std::set<std::string> own;
      for (const OrderedJson& type : types.is_array() ? types : OrderedJson::array({types})) {
        if (!type.is_string()) return false;
        own.insert(type == "integer" ? "number" : type.get<std::string>());
      }
      return std::all_of(own.begin(), own.end(),
                         [&](auto& type) { return seen.insert(type).second; });
    });
  }

  // The texts that a property of an object must be one of; none if the schema does not say so.
  static std::set<std::string> Marks(const OrderedJson& schema, const std::string& name) {
    const OrderedJson none = OrderedJson::object();
    if (!schema.is_object() || schema.value("type", OrderedJson()) != "object") return {};
    const OrderedJson required = schema.value("required", OrderedJson::array());
    const OrderedJson properties = schema.value("properties", none);
    if (std::count(required.begin(), required.end(), OrderedJson(name)) == 0) return {};
    const OrderedJson property = properties.is_object() ? properties.value(name, none) : none;
    if (!property.is_object()) return {};
    const OrderedJson values = property.contains("const")
                                   ? OrderedJson::array({property["const"]})
                                   : property.value("enum", OrderedJson::array());
    std::set<std::string> marks;
    for (const OrderedJson& value : values) {
      if (!value.is_string()) return {};
      marks.insert(value.get<std::string>());
    }
    return marks;
  }

  // True if each schema is of objects, and gives one property of them other values.
  bool DifferInMark(const OrderedJson& parts) const {
    const OrderedJson& first = Meant(*whole_, parts.front());
    if (!first.is_object() || !first.contains("properties")) return false;
    const auto marks = [&](const std::string& name) {
      std::set<std::string> seen;
      return std::all_of(parts.begin(), parts.end(), [&](const OrderedJson& part) {
        const std::set<std::string> own = Marks(Meant(*whole_, part), name);
        return !own.empty() && std::all_of(own.begin(), own.end(), [&](const std::string& mark) {
          return seen.insert(mark).second;
        });
      });
    };
    const auto names = first["properties"].items();
    return std::any_of(names.begin(), names.end(),
                       [&](const auto& one) { return marks(one.key()); });
  }

  // Joins the schemas of allOf with the keywords beside it, if they can be joined.
  void JoinAllOf(OrderedJson* schema) {
    if (!schema->contains("allOf") || !(*schema)["allOf"].is_array()) return;
    OrderedJson rest = *schema;
    rest.erase("allOf");
    const OrderedJson& parts = (*schema)["allOf"];
    if (parts.empty() || (parts.size() == 1 && !HasAny(rest, Asserts))) return;
    for (const OrderedJson& part : parts) {
      if (!JoinMeant(part, &rest)) return;
    }
    *schema = std::move(rest);
  }

  // Joins each schema of anyOf or oneOf with the keywords beside it, if all can be joined.
  void JoinBeside(OrderedJson* schema, const std::string& place) {
    const char* name = schema->contains("anyOf") ? "anyOf" : "oneOf";
    if (!schema->contains(name) || !(*schema)[name].is_array()) return;
    const OrderedJson& parts = (*schema)[name];
    OrderedJson outer = OrderedJson::object();
    OrderedJson beside = OrderedJson::object();
    for (const auto& [key, value] : schema->items()) (Asserts(key) ? beside : outer)[key] = value;
    if (beside.empty()) return;
    if (parts.size() * beside.dump().size() > kMostCopied) {
      Refuse(place + "/" + name, "is too long beside other keywords, which each part repeats");
    }
    outer[name] = OrderedJson::array();
    for (const OrderedJson& part : parts) {
      const OrderedJson& meant = Meant(given_, part);
      OrderedJson joined = meant;
      // A reference stays where its target has the keywords itself.
      if (Join(beside, &joined) && joined == meant) {
        joined = part;
      } else if (joined = beside; !JoinMeant(part, &joined)) {
        return;
      }
      outer[name].push_back(joined);
    }
    *schema = std::move(outer);
  }

  // Joins a schema with a part, or with what the part refers to.
  bool JoinMeant(const OrderedJson& part, OrderedJson* schema) {
    const OrderedJson& meant = Meant(given_, part);
    if (meant.contains("$id")) return false;  // its references would be the outer schema's
    if (&meant == &part) return !part.contains("$ref") && Join(part, schema);
    const bool alone = !HasAny(part, [](std::string_view keyword) {
      return Asserts(keyword) ||
             (keyword != "$ref" && std::count(kAlone.begin(), kAlone.end(), keyword) > 0);
    });
    return alone && ++meant_ <= kMostMeant && Join(meant, schema);
  }

  // Writes oneOf as anyOf where no value can fit two of its schemas. XGrammar knows fewer such
  // schemas.
  void ExpressOneOf(OrderedJson* schema) const {
    if (!schema->contains("oneOf") || schema->contains("anyOf")) return;
    const OrderedJson& parts = (*schema)["oneOf"];
    if (!DifferInType(parts) && !DifferInMark(parts)) return;
    OrderedJson written = OrderedJson::object();
    for (const auto& [name, value] : schema->items()) {
      written[name == "oneOf" ? "anyOf" : name] = value;
    }
    *schema = std::move(written);
  }

  // A keyword that has to stand alone, apart from annotations.
  void CheckAlone(OrderedJson* schema, std::string_view alone, const std::string& place) {
    const bool listed = alone == "const" || alone == "enum";
    const OrderedJson given = *schema;
    for (const auto& [name, value] : given.items()) {
      const bool other = name != alone && std::count(kAlone.begin(), kAlone.end(), name) > 0;
      if (!other && (!Asserts(name) || (name == "type" && listed))) continue;
      Leave(schema, name, place, "cannot be expressed beside " + std::string(alone));
    }
    if (alone == "$ref") {
      const OrderedJson& target = (*schema)["$ref"];
      if (!target.is_string()) Refuse(place + "/$ref", "must be a string");
      references_.emplace_back(place, target.get<std::string>());
    }
    if (alone == "enum" && (!(*schema)["enum"].is_array() || (*schema)["enum"].empty())) {
      Refuse(place + "/enum", "must be a list with at least one value");
    }
    if (alone == "enum" && (*schema)["enum"].size() > kMostValues) {
      Refuse(place + "/enum", "has " + std::to_string((*schema)["enum"].size()) +
                                  " values; send at most " + std::to_string(kMostValues));
    }
    if (listed && HasLargeNumber(schema->at(alone))) {
      Refuse(place + "/" + std::string(alone), "has a whole number beyond 64 bits");
    }
    if (listed && schema->contains("type")) KeepTyped(schema, alone, place);
  }

  // True if a value has a whole number that XGrammar, which has those of int64, would round.
  static bool HasLargeNumber(const OrderedJson& value) {
    if (value.is_structured()) return std::any_of(value.begin(), value.end(), HasLargeNumber);
    constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
    return value.is_number_unsigned() && value.get<uint64_t>() > kMost;
  }

  // Of the values of enum or const, those of the type that stands beside them.
  void KeepTyped(OrderedJson* schema, std::string_view alone, const std::string& place) const {
    const OrderedJson given = schema->at(alone);
    OrderedJson kept = OrderedJson::array();
    for (const OrderedJson& value : alone == "enum" ? given : OrderedJson::array({given})) {
      const double real = value.is_number() ? value.get<double>() : 0.5;
      const bool whole = value.is_number_integer() || real == std::trunc(real);
      const std::string type = value.is_number() ? "number" : value.type_name();
      if (Permits(*schema, type) || (value.is_number() && whole && Permits(*schema, "integer"))) {
        kept.push_back(value);
      }
    }
    if (kept.empty()) Refuse(place + "/" + std::string(alone), "has no value of the type");
    schema->erase("const");
    schema->erase("type");
    (*schema)["enum"] = kept;
  }

  void VisitObject(OrderedJson* schema, const std::string& place) {
    bool names = schema->contains("propertyNames");
    const bool patterns = schema->contains("patternProperties");
    const bool properties = schema->contains("properties");
    if (!schema->contains("additionalProperties") && !schema->contains("unevaluatedProperties")) {
      // XGrammar allows no other properties. A schema that lists none does not mean that.
      (*schema)["additionalProperties"] = !properties && !patterns;
    }
    const OrderedJson others = schema->value(
        "additionalProperties", schema->value("unevaluatedProperties", OrderedJson(false)));
    const bool open = others != false;
    if (properties) LeaveNever(&(*schema)["properties"], open, place + "/properties");
    if (patterns && (properties || open || names || (*schema)["patternProperties"].size() > 1)) {
      Refuse(place + "/patternProperties",
             "can be expressed only with one pattern, and without other properties");
    }
    if (names && (properties || !open)) {
      Leave(schema, "propertyNames", place,
            std::string("cannot be expressed beside ") +
                (properties ? "properties" : "additionalProperties: false"));
      names = false;
    }
    if (patterns) {
      const auto pattern = (*schema)["patternProperties"].items().begin();
      const std::string read = Expressed(pattern.key(), place + "/patternProperties");
      (*schema)["patternProperties"] = OrderedJson{{read, pattern.value()}};
    }
    const bool counts = schema->contains("minProperties") || schema->contains("maxProperties");
    if (counts && properties && (*schema)["properties"].size() > kMostCounted) {
      Refuse(place + "/properties",
             "has " + std::to_string((*schema)["properties"].size()) +
                 " entries; beside minProperties or maxProperties send at most " +
                 std::to_string(kMostCounted));
    }
    AddRequired(schema, others, patterns || names, place);
    const size_t required = schema->value("required", OrderedJson::array()).size();
    const OrderedJson least = schema->value("minProperties", OrderedJson(0));
    if ((open || patterns) && least.is_number() && least.get<double>() > 1.0 &&
        least.get<double>() > static_cast<double>(required)) {
      // A name may come twice.
      Leave(schema, "minProperties", place,
            "cannot be expressed for properties without given names");
    }
  }

  // Leaves out the properties that no object has. If it may have others, the grammar permits them.
  void LeaveNever(OrderedJson* properties, bool open, const std::string& place) const {
    const OrderedJson given = *properties;
    for (const auto& [name, part] : given.items()) {
      if (part != false) continue;
      if (open) {
        Leave(properties, name, place, kInexpressible);
      } else {
        properties->erase(name);
      }
    }
  }

  // Gives each required property a schema of its own.
  void AddRequired(OrderedJson* schema, const OrderedJson& others, bool unnamed,
                   const std::string& place) const {
    if (!schema->contains("required")) return;
    const OrderedJson required = (*schema)["required"];
    if (!required.is_array()) Refuse(place + "/required", "must be a list of names");
    for (const OrderedJson& name : required) {
      if (!name.is_string()) Refuse(place + "/required", "must be a list of names");
      const std::string key = name.get<std::string>();
      if (schema->contains("properties") && (*schema)["properties"].contains(key)) continue;
      if (unnamed || others == false) {
        Refuse(place + "/required", "names '" + key + "', which is not in properties");
      }
      (*schema)["properties"][key] = others;
    }
  }

  static bool HasAny(const OrderedJson& schema, bool (*is)(std::string_view)) {
    const auto keywords = schema.items();
    return std::any_of(keywords.begin(), keywords.end(),
                       [&](const auto& keyword) { return is(keyword.key()); });
  }

  static bool Permits(const OrderedJson& schema, const std::string& type) {
    const OrderedJson& types = schema.at("type");
    return types.is_array() ? std::count(types.begin(), types.end(), OrderedJson(type)) > 0
                            : types == type;
  }

  std::string where_;
  std::vector<std::string>* unguided_;  // null: refuse
  const OrderedJson* whole_ = nullptr;
  OrderedJson given_;  // the whole schema before it is rewritten
  std::set<std::string> visited_;
  int64_t of_patterns_ = 0;
  int meant_ = 0;
  std::vector<std::pair<std::string, std::string>> references_;
};

}  // namespace

OrderedJson PreparedSchema(OrderedJson schema, const std::string& where, const std::string& type,
                           std::vector<std::string>* unguided) {
  return SchemaPreparation(where, unguided).Done(std::move(schema), type);
}

}  // namespace rvv_runner
