// SPDX-License-Identifier: Apache-2.0
#include "text/answer_parts.h"

#include <algorithm>
#include <utility>

namespace rvv_runner {
namespace {

bool Begins(std::string_view whole, std::string_view begin) { return whole.starts_with(begin); }

}  // namespace

size_t Beginning(std::string_view text, std::string_view marker) {
  for (size_t length = std::min(marker.size() - 1, text.size()); length > 0; --length) {
    if (text.ends_with(marker.substr(0, length))) return length;
  }
  return 0;
}

AnswerParts::AnswerParts(const ToolFormat* format, Thoughts thoughts)
    : format_(format),
      state_(thoughts == Thoughts::kBegun      ? State::kThought
             : thoughts == Thoughts::kMay      ? State::kStart
             : thoughts == Thoughts::kChannels ? State::kHeader
                                               : State::kBehindThought) {}

std::vector<AnswerPart> AnswerParts::Next(std::string_view text) {
  held_ += text;
  while (Step()) {
  }
  return std::exchange(told_, {});
}

std::vector<AnswerPart> AnswerParts::Finish() {
  finished_ = true;
  while (Step()) {
  }
  const bool plain =
      state_ == State::kStart || state_ == State::kBehindThought || state_ == State::kText;
  if (state_ == State::kThought) Tell(AnswerPart::Kind::kThought, held_.size());
  if (plain) Tell(AnswerPart::Kind::kText, held_.size());
  return std::exchange(told_, {});
}

bool AnswerParts::Step() {
  switch (state_) {
    case State::kStart: return Start();
    case State::kThought: return Thought();
    case State::kBehindThought:
    case State::kText: return Plain();
    case State::kOpen: return Open();
    case State::kName: return Name();
    case State::kArguments: return Arguments();
    case State::kHeader: return Header();
    case State::kMessage: return UpTo(of_message_, kMessageEnd, State::kHeader);
    default: return Close();
  }
}

bool AnswerParts::Start() {
  if (Begins(kThink, held_) && held_ != kThink && !finished_) return false;
  if (Begins(held_, kThink)) {
    held_.erase(0, kThink.size());
    state_ = State::kThought;
  } else {
    state_ = State::kBehindThought;
  }
  return true;
}

bool AnswerParts::Thought() {
  breaks_ = true;
  return UpTo(AnswerPart::Kind::kThought, kThinkEnd, State::kBehindThought);
}

bool AnswerParts::Plain() {
  if (breaks_ && state_ == State::kBehindThought) {
    // Line ends behind a thought belong to neither.
    held_.erase(0, std::min(held_.find_first_not_of('\n'), held_.size()));
    if (held_.empty() && !finished_) return false;
  }
  if (format_ == nullptr) {
    state_ = State::kText;
    Tell(AnswerPart::Kind::kText, held_.size());
    return false;
  }
  const bool at_once = format_->begin.empty();
  if (!at_once) {
    state_ = State::kText;
    return UpTo(AnswerPart::Kind::kText, format_->begin, State::kOpen);
  }
  // Calls without a marker are the whole answer.
  const size_t blanks = held_.find_first_not_of(" \n");
  if (state_ == State::kBehindThought && blanks == std::string::npos && !finished_) return false;
  if (state_ == State::kBehindThought && blanks != std::string::npos) {
    const std::string rest = held_.substr(blanks);
    if (Begins(rest, format_->open)) {
      held_ = rest;
      state_ = State::kOpen;
      return true;
    }
    if (Begins(format_->open, rest) && !finished_) return false;
  }
  state_ = State::kText;
  Tell(AnswerPart::Kind::kText, held_.size());
  return false;
}

bool AnswerParts::Open() {
  if (Begins(held_, format_->open)) {
    held_.erase(0, format_->open.size());
    state_ = State::kName;
    return true;
  }
  // The beginning of a call that was cut is no text.
  if (Begins(format_->open, held_)) return false;
  // A marker without a call is text.
  state_ = State::kText;
  Tell(AnswerPart::Kind::kText, held_.size());
  return false;
}

bool AnswerParts::Name() {
  const size_t found = held_.find(format_->middle);
  if (found == std::string::npos) return false;
  TellCall(held_.substr(0, found));
  held_.erase(0, found + format_->middle.size());
  state_ = State::kArguments;
  depth_ = 0;
  return true;
}

bool AnswerParts::Arguments() {
  for (size_t at = 0; at < held_.size(); ++at) {
    const char c = held_[at];
    if (quoted_) {
      quoted_ = c != '"' || escaped_;
      escaped_ = c == '\\' && !escaped_;
      continue;
    }
    quoted_ = c == '"';
    if (c == '{' || c == '[') ++depth_;
    if ((c != '}' && c != ']') || --depth_ > 0) continue;
    Tell(AnswerPart::Kind::kArguments, at + 1);
    state_ = State::kClose;
    return true;
  }
  Tell(AnswerPart::Kind::kArguments, held_.size());
  return false;
}

bool AnswerParts::Close() {
  const std::string& between = format_->between;
  const size_t end =
      format_->close.size() + static_cast<size_t>(format_->id_length) + format_->after_id.size();
  if (between.empty() || held_.size() < end + between.size() ||
      held_.compare(end, between.size(), between) != 0) {
    return false;  // what ends the calls is not told
  }
  held_.erase(0, end + between.size());
  state_ = State::kOpen;
  return true;
}

bool AnswerParts::Header() {
  constexpr std::string_view kBegins[] = {kChannel, kStart, kCallee};
  const auto some = [&](const auto& matches) { return std::ranges::any_of(kBegins, matches); };
  if (!some([&](std::string_view begin) { return Begins(held_, begin); })) {
    const bool open = some([&](std::string_view begin) { return Begins(begin, held_); });
    if (open && !finished_) return false;
    // Text without a message is the answer.
    state_ = State::kBehindThought;
    return true;
  }
  const size_t found = held_.find(kMessage);
  if (found == std::string::npos) return false;
  const std::string header = held_.substr(0, found);
  const bool thought = header.ends_with(kThoughtChannel);
  of_message_ = thought ? AnswerPart::Kind::kThought : AnswerPart::Kind::kText;
  const size_t callee = header.find(kCallee);
  if (format_ != nullptr && callee != std::string::npos) {
    const std::string name = header.substr(callee + kCallee.size());
    TellCall(name.substr(0, name.find_first_of(" <")));
    of_message_ = AnswerPart::Kind::kArguments;
  }
  held_.erase(0, found + kMessage.size());
  state_ = State::kMessage;
  return true;
}

bool AnswerParts::UpTo(AnswerPart::Kind kind, std::string_view marker, State next) {
  const size_t found = held_.find(marker);
  if (found == std::string::npos) {
    const size_t kept = finished_ ? 0 : Beginning(held_, marker);
    Tell(kind, held_.size() - kept);
    return false;
  }
  Tell(kind, found);
  held_.erase(0, marker.size());
  state_ = next;
  return true;
}

void AnswerParts::TellCall(const std::string& name) {
  ++calls_;
  told_.push_back({AnswerPart::Kind::kCall, name});
}

void AnswerParts::Tell(AnswerPart::Kind kind, size_t bytes) {
  if (bytes > 0) told_.push_back({kind, held_.substr(0, bytes)});
  held_.erase(0, bytes);
}

}  // namespace rvv_runner
