// SPDX-License-Identifier: Apache-2.0
#include "api/ollama_writer.h"

#include <array>
#include <ctime>

#include "input/errors.h"

namespace rvv_runner {
namespace {

constexpr int kDeepest = 1 << 20;  // no request bounds what a model writes

int64_t Nanoseconds(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

}  // namespace

std::string Rfc3339(int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts = {};
  gmtime_r(&time, &parts);
  std::array<char, 32> text = {};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

std::string TaggedName(const std::string& name) {
  return name.find(':') == std::string::npos ? name + ":latest" : name;
}

OrderedJson OllamaModel(const std::string& name, int64_t bytes, const std::string& digest) {
  const std::string tagged = TaggedName(name);
  return {{"name", tagged},
          {"model", tagged},
          {"size", bytes},
          {"digest", digest},
          {"details",
           {{"parent_model", ""},
            {"format", "mlc-rvv"},
            {"family", ""},
            {"families", OrderedJson::array()},
            {"parameter_size", ""},
            {"quantization_level", ""}}}};
}

OrderedJson OllamaError(const ApiError& error) { return {{"error", error.what()}}; }

OllamaWriter::OllamaWriter(const Form& form, bool chat, const Tokenizer& tokenizer, AnswerName name,
                           Thoughts thoughts)
    : chat_(chat),
      name_(std::move(name)),
      parts_(form.tools.empty() || !tokenizer.calls() ? nullptr : &*tokenizer.calls(), thoughts) {}

OrderedJson OllamaWriter::Line(const std::string& text, const std::string& thought,
                               const OrderedJson& calls, bool done) const {
  OrderedJson line = {{"model", TaggedName(name_.model)}, {"created_at", Rfc3339(name_.created)}};
  OrderedJson message = {{"role", "assistant"}};
  OrderedJson& words = chat_ ? message : line;
  words[chat_ ? "content" : "response"] = text;
  if (!thought.empty()) words["thinking"] = thought;
  if (!calls.empty()) words["tool_calls"] = calls;
  if (chat_) line["message"] = std::move(message);
  line["done"] = done;
  return line;
}

OrderedJson OllamaWriter::Loaded() const {
  OrderedJson line = Line("", "", {}, true);
  line["done_reason"] = "load";
  return line;
}

void OllamaWriter::CloseCall(Events* events) {
  if (open_.empty()) return;
  const Call call = open_.back();
  open_.clear();
  OrderedJson arguments;
  try {
    arguments = ParseOrderedJson(call.arguments, call.name, {.deepest = kDeepest});
  } catch (const InputError&) {
    return;  // an answer that was cut has no whole arguments
  }
  const OrderedJson written = {
      {"function", {{"name", call.name}, {"arguments", std::move(arguments)}}}};
  calls_.push_back(written);
  events->push_back(Line("", "", OrderedJson::array({written}), false));
}

AnswerWriter::Events OllamaWriter::Take(const std::vector<AnswerPart>& parts) {
  Events events;
  for (const AnswerPart& part : parts) {
    if (part.kind == Kind::kText) {
      text_ += part.text;
      events.push_back(Line(part.text, "", {}, false));
    } else if (part.kind == Kind::kThought) {
      thought_ += part.text;
      events.push_back(Line("", part.text, {}, false));
    } else if (part.kind == Kind::kCall) {
      CloseCall(&events);
      open_.push_back({part.text, ""});
    } else {
      open_.back().arguments += part.text;
    }
  }
  return events;
}

AnswerWriter::Events OllamaWriter::Next(size_t, const Piece& piece) {
  return Take(parts_.Next(piece.text));
}

AnswerWriter::Events OllamaWriter::End(size_t, const Ended& ended) {
  Events events = Take(parts_.Finish());
  CloseCall(&events);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begun_;
  const OrderedJson counts = {
      {"done_reason", ended.finish == rvv_runner::Finish::kLength ? "length" : "stop"},
      {"total_duration", Nanoseconds(taken.count())},
      {"load_duration", 0},
      {"prompt_eval_count", ended.prompt_tokens},
      {"prompt_eval_duration", Nanoseconds(SumOf(ended.prefill_seconds))},
      {"eval_count", ended.answer_tokens},
      {"eval_duration", Nanoseconds(SumOf(ended.decode_seconds))}};
  OrderedJson last = Line("", "", {}, true);
  last.update(counts);
  events.push_back(std::move(last));
  whole_ = Line(text_, thought_, calls_, true);
  whole_.update(counts);
  return events;
}

}  // namespace rvv_runner
