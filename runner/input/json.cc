// SPDX-License-Identifier: Apache-2.0
#include "input/json.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "input/errors.h"
#include "text/utf8.h"

namespace rvv_runner {
namespace {

constexpr int kDeepest = 64;

// Whether the word is a number as RFC 8259, section 6, writes one; strtod takes more than that.
bool IsNumber(const std::string& word) {
  size_t at = 0;
  const auto digits = [&] {
    const size_t start = at;
    while (at < word.size() && word[at] >= '0' && word[at] <= '9') ++at;
    return at - start;
  };
  const auto take = [&](const char* any) {
    const bool found = at < word.size() && std::string(any).find(word[at]) != std::string::npos;
    if (found) ++at;
    return found;
  };
  take("-");
  const size_t first = at;
  const size_t whole = digits();
  if (whole == 0 || (whole > 1 && word[first] == '0')) return false;
  if (take(".") && digits() == 0) return false;
  if (take("eE")) {
    take("+-");
    if (digits() == 0) return false;
  }
  return at == word.size();
}

class Parser {
 public:
  Parser(const std::string& text, const std::string& where) : text_(text), where_(where) {}

  Json Document() {
    Json value = Value(0);
    Space();
    if (at_ != text_.size()) Fail("text after the value");
    return value;
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    throw InputError(where_ + ": not JSON at byte " + std::to_string(at_) + ": " + what);
  }

  void Space() {
    while (at_ < text_.size() && std::string(" \t\r\n").find(text_[at_]) != std::string::npos) {
      ++at_;
    }
  }

  char Peek() {
    Space();
    if (at_ == text_.size()) Fail("it ends too early");
    return text_[at_];
  }

  bool Take(char c) {
    if (Peek() != c) return false;
    ++at_;
    return true;
  }

  void Expect(char c) {
    if (!Take(c)) Fail(std::string("'") + c + "' was expected");
  }

  Json Value(int depth) {
    if (depth > kDeepest) Fail("nested more than " + std::to_string(kDeepest) + " deep");
    switch (Peek()) {
      case '{':
        return Table(depth);
      case '[':
        return List(depth);
      case '"':
        return Json(Text());
      default:
        return Word();
    }
  }

  Json Table(int depth) {
    JsonTable table;
    Expect('{');
    if (Take('}')) return Json(std::move(table));
    do {
      if (Peek() != '"') Fail("a field name was expected");
      std::string key = Text();
      Expect(':');
      table[std::move(key)] = Value(depth + 1);
    } while (Take(','));
    Expect('}');
    return Json(std::move(table));
  }

  Json List(int depth) {
    JsonList list;
    Expect('[');
    if (Take(']')) return Json(std::move(list));
    do {
      list.push_back(Value(depth + 1));
    } while (Take(','));
    Expect(']');
    return Json(std::move(list));
  }

  Json Word() {
    const size_t start = at_;
    while (at_ < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '-' ||
            text_[at_] == '+' || text_[at_] == '.')) {
      ++at_;
    }
    const std::string word = text_.substr(start, at_ - start);
    if (word == "null") return Json();
    if (word == "true") return Json(Json::Value(true));
    if (word == "false") return Json(Json::Value(false));
    if (!IsNumber(word)) {
      at_ = start;
      Fail("a value was expected");
    }
    const char* end = word.data() + word.size();
    int64_t integer = 0;
    const auto whole = std::from_chars(word.data(), end, integer);
    if (whole.ec == std::errc() && whole.ptr == end) return Json(Json::Value(integer));
    const double real = std::strtod(word.c_str(), nullptr);
    if (!std::isfinite(real)) {
      at_ = start;
      Fail("a number is too large");
    }
    return Json(Json::Value(real));
  }

  std::string Text() {
    std::string text;
    ++at_;
    while (true) {
      if (at_ == text_.size()) Fail("a text does not end");
      const char c = text_[at_++];
      if (c == '"') return text;
      if (static_cast<unsigned char>(c) < 0x20) Fail("a control character in a text");
      if (c == '\\') {
        Escape(&text);
      } else {
        text.push_back(c);
      }
    }
  }

  void Escape(std::string* text) {
    static const std::string kNames = "\"\\/bfnrt";
    static const std::string kMeanings = "\"\\/\b\f\n\r\t";
    if (at_ == text_.size()) Fail("a text does not end");
    const char c = text_[at_++];
    if (const size_t found = kNames.find(c); found != std::string::npos) {
      text->push_back(kMeanings[found]);
    } else if (c == 'u') {
      AppendUtf8(CodePoint(), text);
    } else {
      Fail("an unknown escape");
    }
  }

  uint32_t Hex() {
    uint32_t value = 0;
    const char* start = text_.data() + at_;
    if (text_.size() - at_ < 4) Fail("an escape does not end");
    const auto parsed = std::from_chars(start, start + 4, value, 16);
    if (parsed.ec != std::errc() || parsed.ptr != start + 4) Fail("four hex digits were expected");
    at_ += 4;
    return value;
  }

  uint32_t CodePoint() {
    const uint32_t first = Hex();
    if (first < 0xD800 || first > 0xDFFF) return first;
    const bool paired = first < 0xDC00 && text_.compare(at_, 2, "\\u") == 0;
    if (!paired) Fail("half of a surrogate pair");
    at_ += 2;
    const uint32_t second = Hex();
    if (second < 0xDC00 || second > 0xDFFF) Fail("half of a surrogate pair");
    return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
  }

  const std::string& text_;
  const std::string& where_;
  size_t at_ = 0;
};

template <typename T>
const T& As(const Json::Value& value, const std::string& where, const char* kind) {
  if (const T* found = std::get_if<T>(&value)) return *found;
  throw InputError(where + ": " + kind + " was expected");
}

}  // namespace

Json Json::Parse(const std::string& text, const std::string& where) {
  return Parser(text, where).Document();
}

const JsonTable& Json::Table(const std::string& where) const {
  return As<JsonTable>(value_, where, "a table");
}

const JsonList& Json::List(const std::string& where) const {
  return As<JsonList>(value_, where, "a list");
}

const std::string& Json::Text(const std::string& where) const {
  return As<std::string>(value_, where, "a text");
}

int64_t Json::Integer(const std::string& where) const {
  return As<int64_t>(value_, where, "a whole number");
}

const Json& Json::At(const std::string& key, const std::string& where) const {
  const JsonTable& table = Table(where);
  const auto found = table.find(key);
  if (found == table.end()) throw InputError(where + ": the field '" + key + "' is missing");
  return found->second;
}

const Json* Json::Find(const std::string& key) const {
  const auto* table = std::get_if<JsonTable>(&value_);
  if (table == nullptr) return nullptr;
  const auto found = table->find(key);
  return found == table->end() ? nullptr : &found->second;
}

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += std::string("\\") + c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", static_cast<unsigned>(c));
      quoted += escape;
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

}  // namespace rvv_runner
