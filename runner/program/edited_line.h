// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "program/keys.h"

namespace rvv_runner {

// A text that keys change, of one line or several, with a cursor.
class EditedLine {
 public:
  // `history`: earlier texts, the newest last; it must outlive this object.
  EditedLine(std::string text, const std::vector<std::string>& history);

  // What the key did.
  enum class Result { kChanged, kDone, kInterrupted, kEnd };
  Result Press(const Key& key);

  const std::string& text() const { return text_; }
  // Moves the cursor behind the last character.
  void ToEnd() { at_ = text_.size(); }

  // The codes that draw the text in place of the last drawing. The first line follows `prompt`,
  // which is ASCII; the others are indented as much. Shows the lines around the cursor, if not all
  // fit into a terminal of these sizes.
  std::string Draw(const std::string& prompt, size_t columns, size_t rows);
  // Notes that the cursor is at the begin of a row again, below what was drawn.
  void Redrawn() { drawn_row_ = 0; }

 private:
  struct Row {
    size_t begin;  // of its bytes
    size_t end;
    size_t indent;
  };
  std::vector<Row> Rows(size_t indent, size_t columns) const;
  size_t Before(size_t at) const;  // the beginning of the character before a byte
  size_t Behind(size_t at) const;  // the end of the character at a byte
  size_t LineBegin() const;        // of the line around the cursor
  size_t LineEnd() const;
  size_t WordBefore() const;
  size_t WordBehind() const;
  void Erase(size_t begin, size_t end);
  void MoveLine(int by);
  void Recall(int by);
  // While a text of the history is searched. Returns false if the key ends the search and has its
  // ordinary meaning.
  bool Search(const Key& key);
  void Find(size_t newest);
  void ShowUnsent();

  std::string text_;
  size_t at_;  // byte of the cursor
  const std::vector<std::string>& history_;
  size_t recalled_;                      // index in the history; its size: the text itself
  std::string unsent_;                   // the text itself, while another is shown
  std::optional<std::string> searched_;  // while texts of the history are searched: what for
  bool found_ = false;
  size_t drawn_row_ = 0;  // of the cursor, in the last drawing
};

}  // namespace rvv_runner
