// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat.h"
#include "text/tool_format.h"

namespace rvv_runner {

// Bytes at the end of a text that may be the beginning of a marker, which is not empty.
size_t Beginning(std::string_view text, std::string_view marker);

// A part of an answer to a chat.
struct AnswerPart {
  enum class Kind {
    kText,
    kThought,    // what a model writes before its answer: behind <think>, or in a channel
    kCall,       // the name of a tool that is called
    kArguments,  // a piece of the arguments of the last call
  };
  Kind kind;
  std::string text;
};

// Cuts the text of an answer, which comes in pieces, into parts.
class AnswerParts {
 public:
  // `format`: of calls; null if the answer cannot have any. It must outlive this object.
  AnswerParts(const ToolFormat* format, Thoughts thoughts);

  // The parts that this text completes.
  std::vector<AnswerPart> Next(std::string_view text);
  // The rest, after the last text.
  std::vector<AnswerPart> Finish();
  // Number of calls that have begun.
  int64_t calls() const { return calls_; }

 private:
  enum class State {
    kStart,
    kThought,
    kBehindThought,
    kText,
    kOpen,
    kName,
    kArguments,
    kClose,
    kHeader,
    kMessage,
  };

  // Makes one step with the text that is held. Returns false if more text is needed.
  bool Step();
  bool Start();
  bool Plain();
  bool Thought();
  bool Open();
  bool Name();
  bool Arguments();
  bool Close();
  bool Header();
  // Tells `kind` up to `marker`, and goes on with `next` behind it.
  bool UpTo(AnswerPart::Kind kind, std::string_view marker, State next);
  void Tell(AnswerPart::Kind kind, size_t bytes);
  void TellCall(const std::string& name);

  const ToolFormat* format_;
  State state_;
  AnswerPart::Kind of_message_ = AnswerPart::Kind::kText;
  bool finished_ = false;
  bool breaks_ = false;  // a thought has ended
  std::string held_;
  std::vector<AnswerPart> told_;
  int64_t calls_ = 0;
  int depth_ = 0;  // of the arguments' JSON
  bool quoted_ = false;
  bool escaped_ = false;
};

}  // namespace rvv_runner
