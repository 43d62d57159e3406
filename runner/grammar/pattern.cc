// SPDX-License-Identifier: Apache-2.0
#include "grammar/pattern.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "input/utf8.h"

namespace rvv_runner {
namespace {

constexpr int64_t kMostRepeats = 1 << 20;

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Pattern Read() {
    while (at_ < text_.size()) {
      switch (text_[at_]) {
        case '[': Class(); break;
        case '(':
          groups_.push_back({});
          Copy(1);
          break;
        case ')': Close(); break;
        case '{': Repeat(); break;
        default: Item(One(true));
      }
    }
    for (const Group& group : groups_) pattern_.size += group.size;
    return pattern_;
  }

 private:
  struct Group {
    int64_t size = 0;
    int64_t last = 0;  // of its last item
  };

  void Item(int64_t size) {
    groups_.back().last = size;
    groups_.back().size = std::min(groups_.back().size + size, kMostRepeats);
  }

  void Close() {
    Copy(1);
    if (groups_.size() == 1) return;  // XGrammar refuses it
    const int64_t size = groups_.back().size;
    groups_.pop_back();
    Item(size);
  }

  // A class [...]. One that excludes characters may name any.
  void Class() {
    const bool excludes = text_.substr(at_).starts_with("[^");
    Copy(excludes ? 2 : 1);
    while (at_ < text_.size() && text_[at_] != ']') One(!excludes);
    Copy(1);
    Item(1);
  }

  // A repetition {least,most}: its largest number counts.
  void Repeat() {
    int64_t most = 0;
    int64_t number = 0;
    do {
      const char c = text_[at_];
      const bool digit = c >= '0' && c <= '9';
      number = digit ? std::min(number * 10 + (c - '0'), kMostRepeats) : 0;
      most = std::max(most, number);
      Copy(1);
    } while (at_ < text_.size() && text_[at_ - 1] != '}');
    Group& group = groups_.back();
    const int64_t more = std::min(group.last * std::max<int64_t>(most - 1, 0), kMostRepeats);
    group.last = std::min(group.last + more, kMostRepeats);
    group.size = std::min(group.size + more, kMostRepeats);
  }

  // One character or escape. `named`: it may be a part of a match.
  int64_t One(bool named) {
    const Decoded decoded = DecodeAt(text_, at_);
    if (decoded.code == '\\' && at_ + 1 < text_.size()) {
      if (named && Escaped(text_.substr(at_ + 1))) {
        pattern_.wrong = "names a character that JSON escapes";
      } else if (Surrogate(text_.substr(at_ + 1))) {
        pattern_.wrong = "names half of a character (a surrogate)";
      }
      Copy(1);
      Copy(DecodeAt(text_, at_).length);
      return 1;
    }
    if (named && (decoded.code < 0x20 || decoded.code == '"')) {
      pattern_.wrong = "names a character that JSON escapes";
    }
    if (decoded.code >= 0x80) {
      char escape[16];
      std::snprintf(escape, sizeof(escape), "\\u{%x}", static_cast<unsigned>(decoded.code));
      pattern_.text += escape;
      at_ += decoded.length;
      return 1;
    }
    Copy(decoded.length);
    return 1;
  }

  // True if an escape, without its backslash, is that of one character that JSON escapes.
  static bool Escaped(std::string_view rest) {
    if (std::string_view("\\\"nrtfv0c").find(rest[0]) != std::string_view::npos) return true;
    if (rest[0] == 'x') return rest.starts_with("x0") || rest.starts_with("x1") || Quote(rest, 1);
    if (rest.starts_with("u{")) return rest.find('}') < 5;  // below U+0100: that is enough
    return rest.starts_with("u000") || rest.starts_with("u001") ||
           (rest.starts_with("u00") && Quote(rest, 3));
  }

  // True if an escape, without its backslash, is that of U+D800 to U+DFFF.
  static bool Surrogate(std::string_view rest) {
    if (!rest.starts_with('u')) return false;
    const std::string digits(rest.substr(rest.starts_with("u{") ? 2 : 1, 6));
    const unsigned long code =
        std::strtoul(digits.substr(0, rest[1] == '{' ? 6 : 4).c_str(), nullptr, 16);
    return code >= 0xd800 && code <= 0xdfff;
  }

  // True if two digits are those of a quote or a backslash.
  static bool Quote(std::string_view rest, size_t at) {
    const std::string_view digits = rest.substr(std::min(at, rest.size()), 2);
    return digits == "22" || digits == "5c" || digits == "5C";
  }

  void Copy(size_t bytes) {
    pattern_.text += text_.substr(std::min(at_, text_.size()), bytes);
    at_ += bytes;
  }

  std::string_view text_;
  size_t at_ = 0;
  std::vector<Group> groups_ = {{}};
  Pattern pattern_;
};

}  // namespace

Pattern ReadPattern(std::string_view text) { return Reader(text).Read(); }

}  // namespace rvv_runner
