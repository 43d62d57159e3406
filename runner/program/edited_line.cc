// SPDX-License-Identifier: Apache-2.0
#include "program/edited_line.h"

#include <algorithm>
#include <utility>

#include "input/utf8.h"
#include "text/unicode.h"

namespace rvv_runner {
namespace {

size_t WidthOf(std::string_view text) {
  size_t width = 0;
  for (size_t at = 0; at < text.size();) {
    const Decoded decoded = DecodeAt(text, at);
    width += ColumnsOf(decoded.code);
    at += decoded.length;
  }
  return width;
}

// The first byte of the last character.
size_t FirstOfLast(const std::string& text) {
  size_t at = text.size();
  while (at > 0 && (text[--at] & 0xC0) == 0x80) continue;
  return at;
}

// Control characters of a paste must not reach the terminal.
std::string Shown(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7F) c = ' ';
  }
  return text;
}

}  // namespace

EditedLine::EditedLine(std::string text, const std::vector<std::string>& history)
    : text_(std::move(text)), at_(text_.size()), history_(history), recalled_(history.size()) {}

EditedLine::Result EditedLine::Press(const Key& key) {
  using Kind = Key::Kind;
  if (searched_ && Search(key)) return Result::kChanged;
  switch (key.kind) {
    case Kind::kText:
    case Kind::kNewLine: {
      const std::string text = key.kind == Kind::kText ? key.text : "\n";
      text_.insert(at_, text);
      at_ += text.size();
      break;
    }
    case Kind::kEnter:
      if (!text_.ends_with('\\') || at_ != text_.size()) return Result::kDone;
      text_.back() = '\n';
      break;
    case Kind::kInterrupt: return Result::kInterrupted;
    case Kind::kEndOfInput:
      if (text_.empty()) return Result::kEnd;
      [[fallthrough]];
    case Kind::kDelete: Erase(at_, Behind(at_)); break;
    case Kind::kBackspace: Erase(Before(at_), at_); break;
    case Kind::kEraseWord: Erase(WordBefore(), at_); break;
    case Kind::kEraseBefore: Erase(LineBegin(), at_); break;
    case Kind::kEraseBehind: Erase(at_, LineEnd()); break;
    case Kind::kLeft: at_ = Before(at_); break;
    case Kind::kRight: at_ = Behind(at_); break;
    case Kind::kWordLeft: at_ = WordBefore(); break;
    case Kind::kWordRight: at_ = WordBehind(); break;
    case Kind::kHome: at_ = LineBegin(); break;
    case Kind::kEnd: at_ = LineEnd(); break;
    case Kind::kUp: MoveLine(-1); break;
    case Kind::kDown: MoveLine(1); break;
    case Kind::kSearch:
      searched_ = "";
      found_ = true;
      break;
    case Kind::kRedraw:
    case Kind::kSuspend:
    case Kind::kLeaveSearch:
    case Kind::kIgnored: break;
  }
  return Result::kChanged;
}

size_t EditedLine::LineBegin() const { return at_ ? text_.rfind('\n', at_ - 1) + 1 : 0; }

size_t EditedLine::LineEnd() const { return std::min(text_.find('\n', at_), text_.size()); }

size_t EditedLine::Before(size_t at) const {
  while (at > 0) {
    do --at;
    while (at > 0 && (text_[at] & 0xC0) == 0x80);
    if (ColumnsOf(DecodeAt(text_, at).code) > 0) break;
  }
  return at;
}

size_t EditedLine::Behind(size_t at) const {
  if (at == text_.size()) return at;
  do at += DecodeAt(text_, at).length;
  while (at < text_.size() && ColumnsOf(DecodeAt(text_, at).code) == 0);
  return at;
}

size_t EditedLine::WordBefore() const {
  size_t at = at_;
  while (at > 0 && IsSpace(DecodeAt(text_, Before(at)).code)) at = Before(at);
  while (at > 0 && !IsSpace(DecodeAt(text_, Before(at)).code)) at = Before(at);
  return at;
}

size_t EditedLine::WordBehind() const {
  size_t at = at_;
  while (at < text_.size() && IsSpace(DecodeAt(text_, at).code)) at = Behind(at);
  while (at < text_.size() && !IsSpace(DecodeAt(text_, at).code)) at = Behind(at);
  return at;
}

void EditedLine::Erase(size_t begin, size_t end) {
  text_.erase(begin, end - begin);
  at_ = begin;
}

// To the line above or below, at the same distance from its begin; from the first or last line to
// another text of the history.
void EditedLine::MoveLine(int by) {
  const size_t begin = LineBegin();
  const size_t end = LineEnd();
  if ((by < 0 && begin == 0) || (by > 0 && end == text_.size())) return Recall(by);
  const size_t width = WidthOf(std::string_view(text_).substr(begin, at_ - begin));
  const size_t there = by > 0 ? end + 1 : begin > 1 ? text_.rfind('\n', begin - 2) + 1 : 0;
  const size_t last = std::min(text_.find('\n', there), text_.size());
  at_ = there;
  while (at_ < last && WidthOf(std::string_view(text_).substr(there, at_ - there)) < width) {
    at_ = Behind(at_);
  }
}

void EditedLine::Recall(int by) {
  if (by < 0 ? recalled_ == 0 : recalled_ == history_.size()) return;
  if (recalled_ == history_.size()) unsent_ = text_;
  recalled_ += by < 0 ? -1 : 1;
  text_ = recalled_ == history_.size() ? unsent_ : history_[recalled_];
  ToEnd();
}

bool EditedLine::Search(const Key& key) {
  using Kind = Key::Kind;
  switch (key.kind) {
    case Kind::kText:
      *searched_ += key.text;
      Find(recalled_);
      return true;
    case Kind::kBackspace:
      searched_->resize(FirstOfLast(*searched_));
      ShowUnsent();
      Find(history_.size());
      return true;
    case Kind::kSearch:
      if (!searched_->empty() && recalled_ > 0) Find(recalled_ - 1);
      return true;
    case Kind::kLeaveSearch:
    case Kind::kInterrupt:
      searched_.reset();
      ShowUnsent();
      return true;
    case Kind::kRedraw:
    case Kind::kSuspend: return true;
    default: searched_.reset(); return false;
  }
}

void EditedLine::ShowUnsent() {
  if (recalled_ != history_.size()) text_ = unsent_;
  recalled_ = history_.size();
  ToEnd();
}

// Shows the newest text of the history that holds what is searched, from `newest` on to older ones.
void EditedLine::Find(size_t newest) {
  found_ = searched_->empty();
  for (size_t at = std::min(newest + 1, history_.size()); at > 0 && !found_; --at) {
    const size_t place = history_[at - 1].rfind(*searched_);
    if (place == std::string::npos) continue;
    if (recalled_ == history_.size()) unsent_ = text_;
    recalled_ = at - 1;
    text_ = history_[recalled_];
    at_ = place;
    found_ = true;
  }
}

std::vector<EditedLine::Row> EditedLine::Rows(size_t indent, size_t columns) const {
  std::vector<Row> rows = {{0, 0, indent}};
  size_t column = indent;
  for (size_t at = 0; at < text_.size();) {
    const Decoded decoded = DecodeAt(text_, at);
    const bool line_end = decoded.code == '\n';
    const size_t width = line_end ? 0 : ColumnsOf(decoded.code);
    if (!line_end && column + width > columns) {
      rows.push_back({at, at, 0});
      column = 0;
    }
    at += decoded.length;
    rows.back().end = line_end ? rows.back().end : at;
    column += width;
    if (!line_end) continue;
    rows.push_back({at, at, indent});
    column = indent;
  }
  return rows;
}

std::string EditedLine::Draw(const std::string& ordinary, size_t columns, size_t rows) {
  const std::string prompt =
      !searched_ ? ordinary : std::string(found_ ? "search '" : "no '") + Shown(*searched_) + "': ";
  const size_t indent = WidthOf(prompt);
  columns = std::max<size_t>(columns, indent + 2);  // a wide character has room
  const std::vector<Row> all = Rows(indent, columns);
  size_t current = all.size() - 1;
  while (all[current].begin > at_) --current;
  const size_t before = all[current].indent + WidthOf(std::string_view(text_).substr(
                                                  all[current].begin, at_ - all[current].begin));
  const size_t most = std::max<size_t>(rows, 2) - 1;
  const size_t first = current < most ? 0 : current - most + 1;
  const size_t end = std::min(all.size(), first + most);
  std::string out = drawn_row_ ? "\x1B[" + std::to_string(drawn_row_) + "A" : "";
  out += "\r\x1B[J";
  for (size_t i = first; i < end; ++i) {
    out += i > first ? "\r\n" : "";
    out += i == 0 ? prompt : std::string(all[i].indent, ' ');
    out += Shown(text_.substr(all[i].begin, all[i].end - all[i].begin));
  }
  if (end - 1 > current) out += "\x1B[" + std::to_string(end - 1 - current) + "A";
  out += "\r";
  const size_t column = std::min(before, columns - 1);
  if (column > 0) out += "\x1B[" + std::to_string(column) + "C";
  drawn_row_ = current - first;
  return out;
}

}  // namespace rvv_runner
