// SPDX-License-Identifier: Apache-2.0
#include "api/completion_writer.h"

#include <cmath>
#include <cstdio>
#include <utility>

#include "input/utf8.h"

namespace rvv_runner {
namespace {

using Kind = AnswerPart::Kind;

// JSON has no infinity; OpenAI writes this for an impossible token.
double Bounded(double logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

OrderedJson NoLogprobs(bool chat) {
  if (chat) return {{"content", OrderedJson::array()}, {"refusal", nullptr}};
  return {{"tokens", OrderedJson::array()},
          {"token_logprobs", OrderedJson::array()},
          {"top_logprobs", OrderedJson::array()},
          {"text_offset", OrderedJson::array()}};
}

// Appends the lists of a table to those of another one.
void AppendLists(const OrderedJson& more, OrderedJson* lists) {
  for (const auto& [name, list] : more.items()) {
    if (!list.is_array()) continue;
    OrderedJson& whole = (*lists)[name];
    whole.insert(whole.end(), list.begin(), list.end());
  }
}

}  // namespace

CompletionWriter::CompletionWriter(const ApiRequest& request, const Tokenizer& tokenizer,
                                   AnswerName name, Thoughts thoughts, std::vector<Echo> echoes)
    : tokenizer_(tokenizer),
      chat_(request.chat()),
      wants_logprobs_(request.sampling.top_logprobs >= 0),
      include_usage_(request.stream && request.include_usage),
      name_(std::move(name)),
      usage_(request.n) {
  const bool calls = !request.form.tools.empty() && tokenizer.calls();
  for (size_t i = 0; i < request.answers(); ++i) {
    Answer& answer = answers_.emplace_back(calls ? &*tokenizer.calls() : nullptr, thoughts);
    if (!echoes.empty()) answer.echo = std::move(echoes[i]);
    answer.echoed = echoes.empty();
    if (wants_logprobs_) answer.logprobs = NoLogprobs(chat_);
  }
}

OrderedJson CompletionWriter::Frame(const char* object) const {
  return {{"id", name_.id},
          {"object", object},
          {"created", name_.created},
          {"model", name_.model},
          {"choices", OrderedJson::array()}};
}

OrderedJson CompletionWriter::Choice(size_t answer, const OrderedJson& delta,
                                     const OrderedJson& logprobs, const OrderedJson& reason) const {
  OrderedJson frame = Frame(chat_ ? "chat.completion.chunk" : "text_completion");
  OrderedJson choice = {{"index", answer},
                        {chat_ ? "delta" : "text", delta},
                        {"logprobs", logprobs},
                        {"finish_reason", reason}};
  frame["choices"].push_back(choice);
  if (include_usage_) frame["usage"] = nullptr;
  return frame;
}

AnswerWriter::Events CompletionWriter::Begin() {
  Events events;
  for (size_t i = 0; chat_ && i < answers_.size(); ++i) {
    events.push_back(Choice(i, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr));
  }
  return events;
}

OrderedJson CompletionWriter::Delta(const Answer& answer, const AnswerPart& part) const {
  if (part.kind == Kind::kText) return {{"content", part.text}};
  if (part.kind == Kind::kThought) return {{"reasoning_content", part.text}};
  OrderedJson call = {{"index", answer.calls.size() - 1}};
  if (part.kind == Kind::kCall) {
    call["id"] = answer.calls.back().id;
    call["type"] = "function";
    call["function"] = {{"name", part.text}, {"arguments", ""}};
  } else {
    call["function"] = {{"arguments", part.text}};
  }
  return {{"tool_calls", OrderedJson::array({call})}};
}

std::string CompletionWriter::CallId(size_t answer) const {
  return "call_" + name_.id.substr(name_.id.find('-') + 1) + "_" + std::to_string(answer) + "_" +
         std::to_string(answers_[answer].calls.size());
}

std::string CompletionWriter::Reason(const Answer& answer, const Ended& ended) const {
  if (ended.finish == Finish::kLength) return "length";
  return answer.calls.empty() ? "stop" : "tool_calls";
}

void CompletionWriter::Collect(size_t index, const AnswerPart& part) {
  Answer& answer = answers_[index];
  switch (part.kind) {
    case Kind::kText: answer.text += part.text; break;
    case Kind::kThought: answer.thought += part.text; break;
    case Kind::kCall: answer.calls.push_back({CallId(index), part.text, ""}); break;
    case Kind::kArguments: answer.calls.back().arguments += part.text;
  }
}

AnswerWriter::Events CompletionWriter::Parts(size_t index, const std::vector<AnswerPart>& parts,
                                             OrderedJson logprobs) {
  Events events;
  for (const AnswerPart& part : parts) {
    Collect(index, part);
    const OrderedJson delta = Delta(answers_[index], part);
    events.push_back(Choice(index, delta, std::exchange(logprobs, nullptr), nullptr));
  }
  // Its text is held back.
  if (!logprobs.is_null()) events.push_back(Choice(index, {{"content", ""}}, logprobs, nullptr));
  return events;
}

// The prompt, before the first text of its answer.
AnswerWriter::Events CompletionWriter::Repeated(size_t index,
                                                const std::vector<TokenLogprob>& prompt) {
  Answer& answer = answers_[index];
  if (std::exchange(answer.echoed, true)) return {};
  const OrderedJson logprobs = TextLogprobs(&answer, prompt, true);
  answer.characters = Characters(answer.echo.text);
  answer.text = std::move(answer.echo.text);
  return {Choice(index, answer.text, logprobs, nullptr)};
}

AnswerWriter::Events CompletionWriter::TextNext(size_t index, const Piece& piece) {
  Events events = Repeated(index, piece.prompt);
  Answer& answer = answers_[index];
  const OrderedJson logprobs = TextLogprobs(&answer, piece.logprobs, false);
  answer.characters += Characters(piece.text);
  answer.text += piece.text;
  const bool nothing = piece.text.empty() && (!wants_logprobs_ || piece.logprobs.empty());
  if (!nothing) events.push_back(Choice(index, piece.text, logprobs, nullptr));
  return events;
}

AnswerWriter::Events CompletionWriter::Next(size_t index, const Piece& piece) {
  if (!chat_) return TextNext(index, piece);
  Answer& answer = answers_[index];
  const OrderedJson logprobs = ChatLogprobs(&answer, piece.logprobs);
  return Parts(index, answer.parts.Next(piece.text), logprobs);
}

AnswerWriter::Events CompletionWriter::End(size_t index, const Ended& ended) {
  Answer& answer = answers_[index];
  usage_.Add(index, ended);
  Events events = chat_ ? Parts(index, answer.parts.Finish(), nullptr) : Repeated(index, {});
  answer.reason = Reason(answer, ended);
  const OrderedJson nothing = chat_ ? OrderedJson::object() : OrderedJson("");
  events.push_back(Choice(index, nothing, nullptr, answer.reason));
  return events;
}

AnswerWriter::Events CompletionWriter::Finish() {
  if (!include_usage_) return {};
  OrderedJson frame = Frame(chat_ ? "chat.completion.chunk" : "text_completion");
  frame["usage"] = usage_.Body();
  return {frame};
}

OrderedJson CompletionWriter::Message(const Answer& answer) const {
  OrderedJson message = {{"role", "assistant"}, {"content", answer.text}, {"refusal", nullptr}};
  if (!answer.thought.empty()) message["reasoning_content"] = answer.thought;
  if (answer.calls.empty()) return message;
  message["content"] = OrNull(answer.text);
  for (const Call& call : answer.calls) {
    message["tool_calls"].push_back(
        {{"id", call.id},
         {"type", "function"},
         {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return message;
}

OrderedJson CompletionWriter::Body() const {
  OrderedJson frame = Frame(chat_ ? "chat.completion" : "text_completion");
  for (size_t i = 0; i < answers_.size(); ++i) {
    const Answer& answer = answers_[i];
    OrderedJson choice = {{"index", i}};
    if (chat_) {
      choice["message"] = Message(answer);
    } else {
      choice["text"] = answer.text;
    }
    choice["logprobs"] = answer.logprobs;
    choice["finish_reason"] = answer.reason;
    frame["choices"].push_back(choice);
  }
  frame["usage"] = usage_.Body();
  return frame;
}

// The text of a token, or the name of a special one. If its bytes are not UTF-8, they are escaped
// as OpenAI does in completions.
std::string CompletionWriter::Named(int32_t token) const {
  const std::string bytes(tokenizer_.Visible(token));
  if (!FirstBroken(bytes)) return bytes;
  std::string text = "bytes:";
  for (const char c : bytes) {
    char escape[8];
    std::snprintf(escape, sizeof(escape), "\\x%02x", static_cast<unsigned>(c) & 0xFF);
    text += escape;
  }
  return text;
}

OrderedJson CompletionWriter::ChatLogprob(int32_t token, double logprob) const {
  const std::string text(tokenizer_.Bytes(token));
  OrderedJson bytes = OrderedJson::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", text}, {"logprob", Bounded(logprob)}, {"bytes", bytes}};
}

OrderedJson CompletionWriter::ChatLogprobs(Answer* answer,
                                           const std::vector<TokenLogprob>& tokens) const {
  if (!wants_logprobs_ || tokens.empty()) return nullptr;
  OrderedJson logprobs = NoLogprobs(true);
  for (const TokenLogprob& token : tokens) {
    OrderedJson entry = ChatLogprob(token.token, token.logprob);
    entry["top_logprobs"] = OrderedJson::array();
    for (const auto& [other, logprob] : token.top) {
      entry["top_logprobs"].push_back(ChatLogprob(other, logprob));
    }
    logprobs["content"].push_back(entry);
  }
  AppendLists(logprobs, &answer->logprobs);
  return logprobs;
}

OrderedJson CompletionWriter::TextLogprobs(Answer* answer, const std::vector<TokenLogprob>& tokens,
                                           bool prompt) const {
  if (!wants_logprobs_) return nullptr;
  OrderedJson lists = NoLogprobs(false);
  size_t offset = answer->characters;
  size_t hidden = prompt ? answer->echo.hidden : 0;
  for (const TokenLogprob& token : tokens) {
    OrderedJson top = OrderedJson::object();
    for (const auto& [other, logprob] : token.top) top[Named(other)] = Bounded(logprob);
    // No token comes before the first one of a prompt.
    const bool known = !std::isnan(token.logprob);
    lists["tokens"].push_back(Named(token.token));
    lists["token_logprobs"].push_back(known ? OrderedJson(Bounded(token.logprob)) : OrderedJson());
    lists["top_logprobs"].push_back(known ? top : OrderedJson());
    lists["text_offset"].push_back(offset);
    const bool shown = hidden == 0;
    if (shown) {
      offset +=
          Characters(prompt ? tokenizer_.Visible(token.token) : tokenizer_.Bytes(token.token));
      if (prompt) offset -= std::exchange(answer->echo.added, 0);
    } else {
      --hidden;
    }
  }
  AppendLists(lists, &answer->logprobs);
  return lists;
}

}  // namespace rvv_runner
