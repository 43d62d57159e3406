// SPDX-License-Identifier: Apache-2.0
#include "input/json.h"

#include <limits>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>

#include "input/errors.h"
#include "input/utf8.h"

namespace rvv_runner {
namespace {

// Counts brackets outside strings, which is at least the depth that the parser reaches.
bool DeeperThan(int deepest, std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      if (c == '\\') ++at;
      if (c == '"') quoted = false;
      continue;
    }
    if (c == '"') quoted = true;
    if (c == '}' || c == ']') --depth;
    if ((c == '{' || c == '[') && ++depth > deepest) return true;
  }
  return false;
}

// Builds the value as the parser reports its parts. nlohmann's own callbacks are not used: after
// each table it searches the values of the parent, which takes quadratic time.
template <typename Value>
class Builder final : public nlohmann::json_sax<Value> {
 public:
  using typename nlohmann::json_sax<Value>::binary_t;
  using typename nlohmann::json_sax<Value>::number_float_t;
  using typename nlohmann::json_sax<Value>::number_integer_t;
  using typename nlohmann::json_sax<Value>::number_unsigned_t;
  using typename nlohmann::json_sax<Value>::string_t;

  Builder(const std::string& what, const JsonBounds& bounds) : what_(what), bounds_(bounds) {}

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // JSON has none
  bool start_object(size_t) override { return Open(Value::object()); }
  bool start_array(size_t) override { return Open(Value::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    Count();
    auto& table = open_.back()->template get_ref<typename Value::object_t&>();
    bool fresh = true;
    if constexpr (std::is_same_v<Value, Json>) {
      const auto found = table.emplace(name, nullptr);
      fresh = found.second;
      named_ = &found.first->second;
    } else {
      // The table itself would look at all of its names.
      const auto found = names_.back().emplace(name, table.size());
      fresh = found.second;
      if (fresh) table.emplace_back(name, nullptr);
      named_ = &(table.begin() + static_cast<std::ptrdiff_t>(found.first->second))->second;
    }
    if (!fresh && bounds_.unique_names) {
      throw InputError(what_ + ": the field '" + name + "' appears twice");
    }
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    throw InputError(what_ + ": not JSON: " + error.what());
  }

  Value Take() { return std::move(root_); }

 private:
  void Count() {
    if (++values_ <= bounds_.most_values) return;
    throw InputError(what_ + ": has more than " + std::to_string(bounds_.most_values) + " values");
  }

  template <typename Part>
  bool Add(Part&& part) {
    Place(std::forward<Part>(part));
    return true;
  }

  template <typename Part>
  Value* Place(Part&& part) {
    Count();
    if (open_.empty()) return &(root_ = std::forward<Part>(part));
    Value& parent = *open_.back();
    if (parent.is_array()) return &parent.emplace_back(std::forward<Part>(part));
    return &(*named_ = std::forward<Part>(part));
  }

  // A parent takes no other value while one of its own is open, so the pointers stay good.
  bool Open(Value container) {
    open_.push_back(Place(std::move(container)));
    if constexpr (!std::is_same_v<Value, Json>) names_.emplace_back();
    return true;
  }

  bool Close() {
    open_.pop_back();
    if constexpr (!std::is_same_v<Value, Json>) names_.pop_back();
    return true;
  }

  const std::string& what_;
  const JsonBounds& bounds_;
  size_t values_ = 0;
  Value root_;
  std::vector<Value*> open_;  // the lists and tables around the next value
  // Names of each of them that keeps their order, and their places in it.
  std::vector<std::map<std::string, size_t>> names_;
  Value* named_ = nullptr;  // the value of the last name
};

template <typename Value>
Value Parsed(std::string_view text, const std::string& what, const JsonBounds& bounds) {
  if (const auto broken = FirstBroken(text)) {
    throw InputError(what + ": byte " + std::to_string(*broken) + " is not UTF-8");
  }
  // The parser would skip a byte order mark, which RFC 8259 does not allow.
  if (text.starts_with("\xEF\xBB\xBF")) throw InputError(what + ": starts with a byte order mark");
  if (DeeperThan(bounds.deepest, text)) {
    throw InputError(what + ": nested more than " + std::to_string(bounds.deepest) + " deep");
  }
  Builder<Value> builder(what, bounds);
  Value::sax_parse(text.begin(), text.end(), &builder);
  return builder.Take();
}

const Json& Wanted(bool found, const Json& value, const std::string& where, const char* kind) {
  if (!found) throw InputError(where + ": " + kind + " was expected");
  return value;
}

}  // namespace

Json ParseJson(std::string_view text, const std::string& what, const JsonBounds& bounds) {
  return Parsed<Json>(text, what, bounds);
}

OrderedJson ParseOrderedJson(std::string_view text, const std::string& what,
                             const JsonBounds& bounds) {
  return Parsed<OrderedJson>(text, what, bounds);
}

const Json& TableOf(const Json& value, const std::string& where) {
  return Wanted(value.is_object(), value, where, "a table");
}

const Json& ListOf(const Json& value, const std::string& where) {
  return Wanted(value.is_array(), value, where, "a list");
}

const std::string& TextOf(const Json& value, const std::string& where) {
  return Wanted(value.is_string(), value, where, "a text").get_ref<const std::string&>();
}

int64_t IntegerOf(const Json& value, const std::string& where) {
  return Wanted(WholeNumber(value).has_value(), value, where, "a whole number").get<int64_t>();
}

double RealOf(const Json& value, const std::string& where) {
  return Wanted(value.is_number(), value, where, "a number").get<double>();
}

std::optional<int64_t> WholeNumber(const Json& value) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  if (!value.is_number_integer()) return {};
  if (value.is_number_unsigned() && value.get<uint64_t>() > kMost) return {};
  return value.get<int64_t>();
}

const Json& Field(const Json& table, const std::string& name, const std::string& where) {
  const auto found = TableOf(table, where).find(name);
  if (found == table.end()) throw InputError(where + ": the field '" + name + "' is missing");
  return *found;
}

const Json* Find(const Json& table, const std::string& name) {
  const auto found = table.find(name);
  return found == table.end() ? nullptr : &*found;
}

std::string Written(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string WrittenInOrder(const OrderedJson& value, int indent) {
  return value.dump(indent, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace rvv_runner
