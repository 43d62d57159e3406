// SPDX-License-Identifier: Apache-2.0
#include "api/api_answer.h"

#include <cmath>
#include <cstdio>
#include <utility>

#include "input/utf8.h"

namespace rvv_runner {
namespace {

constexpr int64_t kCachedBlock = 64;  // tokens

using nlohmann::json;

// JSON has no infinity; OpenAI writes this for an impossible token.
double Bounded(double logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

json OrNull(const std::string& text) { return text.empty() ? json() : json(text); }

}  // namespace

json ErrorBody(const ApiError& error) {
  return {{"error",
           {{"message", error.what()},
            {"type", error.type()},
            {"param", OrNull(error.param())},
            {"code", OrNull(error.code())}}}};
}

void Usage::Add(size_t answer, const Ended& ended) {
  answer_ += ended.answer_tokens;
  if (answer % static_cast<size_t>(n_) != 0) return;
  prompt_ += ended.prompt_tokens;
  // The exact number would tell how a prompt of another client goes on, token by token.
  cached_ += ended.cached_tokens - ended.cached_tokens % kCachedBlock;
}

json Usage::Body() const {
  return {{"prompt_tokens", prompt_},
          {"completion_tokens", answer_},
          {"total_tokens", prompt_ + answer_},
          {"prompt_tokens_details", {{"cached_tokens", cached_}}}};
}

AnswerWriter::AnswerWriter(const ApiRequest& request, const Tokenizer& tokenizer, std::string id,
                           std::string model, int64_t created, AnswerParts::Thoughts thoughts)
    : tokenizer_(tokenizer),
      chat_(request.chat),
      wants_logprobs_(request.sampling.top_logprobs >= 0),
      include_usage_(request.include_usage),
      id_(std::move(id)),
      model_(std::move(model)),
      created_(created),
      usage_(request.n),
      collected_(request.answers()),
      offsets_(request.answers()) {
  const bool calls = !request.tools.empty() && tokenizer.calls();
  for (size_t i = 0; i < request.answers(); ++i) {
    parts_.emplace_back(calls ? &*tokenizer.calls() : nullptr, thoughts);
  }
}

json AnswerWriter::Frame(const char* object) const {
  return {{"id", id_},
          {"object", object},
          {"created", created_},
          {"model", model_},
          {"choices", json::array()}};
}

json AnswerWriter::Choice(size_t answer, const json& delta, const json& logprobs,
                          const json& reason) const {
  json frame = Frame(chat_ ? "chat.completion.chunk" : "text_completion");
  json choice = {{"index", answer}, {"logprobs", logprobs}, {"finish_reason", reason}};
  choice[chat_ ? "delta" : "text"] = delta;
  frame["choices"].push_back(choice);
  if (include_usage_) frame["usage"] = nullptr;
  return frame;
}

json AnswerWriter::First(size_t answer) const {
  if (!chat_) return nullptr;
  return Choice(answer, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr);
}

json AnswerWriter::Delta(size_t answer, const AnswerPart& part) const {
  using Kind = AnswerPart::Kind;
  if (part.kind == Kind::kText) return {{"content", part.text}};
  if (part.kind == Kind::kThought) return {{"reasoning_content", part.text}};
  json call = {{"index", collected_[answer].calls.size() - 1}};
  if (part.kind == Kind::kCall) {
    call["id"] = collected_[answer].calls.back().id;
    call["type"] = "function";
    call["function"] = {{"name", part.text}, {"arguments", ""}};
  } else {
    call["function"] = {{"arguments", part.text}};
  }
  return {{"tool_calls", json::array({call})}};
}

std::string AnswerWriter::CallId(size_t answer) const {
  return "call_" + id_.substr(id_.find('-') + 1) + "_" + std::to_string(answer) + "_" +
         std::to_string(collected_[answer].calls.size());
}

std::string AnswerWriter::Reason(size_t answer, const Ended& ended) const {
  if (ended.finish == Finish::kLength) return "length";
  return collected_[answer].calls.empty() ? "stop" : "tool_calls";
}

std::vector<json> AnswerWriter::Chunks(size_t answer, const Piece& piece) {
  std::vector<json> chunks;
  json logprobs = Logprobs(piece.logprobs, offsets_[answer]);
  offsets_[answer] += Characters(piece.text);
  if (!chat_) {
    const bool nothing = piece.text.empty() && (!wants_logprobs_ || piece.logprobs.empty());
    if (!nothing) chunks.push_back(Choice(answer, piece.text, logprobs, nullptr));
    return chunks;
  }
  for (const AnswerPart& part : parts_[answer].Next(piece.text)) {
    Collect(answer, {part});
    chunks.push_back(
        Choice(answer, Delta(answer, part), std::exchange(logprobs, nullptr), nullptr));
  }
  const bool unsent = !logprobs.is_null() && !piece.logprobs.empty();
  if (unsent) chunks.push_back(Choice(answer, {{"content", ""}}, logprobs, nullptr));
  return chunks;
}

std::vector<json> AnswerWriter::Last(size_t answer, const Ended& ended) {
  std::vector<json> chunks;
  usage_.Add(answer, ended);
  for (const AnswerPart& part : parts_[answer].Finish()) {
    Collect(answer, {part});
    chunks.push_back(Choice(answer, Delta(answer, part), nullptr, nullptr));
  }
  const json nothing = chat_ ? json::object() : json("");
  chunks.push_back(Choice(answer, nothing, nullptr, Reason(answer, ended)));
  return chunks;
}

void AnswerWriter::Collect(size_t answer, const std::vector<AnswerPart>& parts) {
  Collected& collected = collected_[answer];
  for (const AnswerPart& part : parts) {
    switch (part.kind) {
      case AnswerPart::Kind::kText: collected.text += part.text; break;
      case AnswerPart::Kind::kThought: collected.thought += part.text; break;
      case AnswerPart::Kind::kCall:
        collected.calls.push_back({CallId(answer), part.text, ""});
        break;
      case AnswerPart::Kind::kArguments: collected.calls.back().arguments += part.text;
    }
  }
}

json AnswerWriter::Tail() const {
  json frame = Frame(chat_ ? "chat.completion.chunk" : "text_completion");
  frame["usage"] = usage_.Body();
  return frame;
}

void AnswerWriter::Add(size_t answer, const Piece& piece) {
  Collected& collected = collected_[answer];
  if (chat_) {
    Collect(answer, parts_[answer].Next(piece.text));
  } else {
    collected.text += piece.text;
  }
  const auto& logprobs = piece.logprobs;
  collected.logprobs.insert(collected.logprobs.end(), logprobs.begin(), logprobs.end());
}

void AnswerWriter::Add(size_t answer, const Ended& ended) {
  usage_.Add(answer, ended);
  Collect(answer, parts_[answer].Finish());
  collected_[answer].reason = Reason(answer, ended);
}

json AnswerWriter::Message(const Collected& collected) const {
  json message = {{"role", "assistant"}, {"content", collected.text}, {"refusal", nullptr}};
  if (!collected.thought.empty()) message["reasoning_content"] = collected.thought;
  if (collected.calls.empty()) return message;
  message["content"] = OrNull(collected.text);
  for (const Call& call : collected.calls) {
    message["tool_calls"].push_back(
        {{"id", call.id},
         {"type", "function"},
         {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return message;
}

json AnswerWriter::Body() const {
  json frame = Frame(chat_ ? "chat.completion" : "text_completion");
  for (size_t i = 0; i < collected_.size(); ++i) {
    const Collected& collected = collected_[i];
    json choice = {{"index", i},
                   {"logprobs", Logprobs(collected.logprobs, 0)},
                   {"finish_reason", collected.reason}};
    if (chat_) {
      choice["message"] = Message(collected);
    } else {
      choice["text"] = collected.text;
    }
    frame["choices"].push_back(choice);
  }
  frame["usage"] = usage_.Body();
  return frame;
}

// The text of a token. If its bytes are not UTF-8, they are escaped as OpenAI does in completions.
std::string AnswerWriter::Named(int32_t token) const {
  const std::string bytes(tokenizer_.Bytes(token));
  if (!FirstBroken(bytes)) return bytes;
  std::string text = "bytes:";
  for (const char c : bytes) {
    char escape[8];
    std::snprintf(escape, sizeof(escape), "\\x%02x", static_cast<unsigned>(c) & 0xFF);
    text += escape;
  }
  return text;
}

json AnswerWriter::ChatLogprob(int32_t token, double logprob) const {
  const std::string text(tokenizer_.Bytes(token));
  json bytes = json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", text}, {"logprob", Bounded(logprob)}, {"bytes", bytes}};
}

json AnswerWriter::Logprobs(const std::vector<TokenLogprob>& tokens, size_t offset) const {
  if (!wants_logprobs_) return nullptr;
  if (chat_) {
    json content = json::array();
    for (const TokenLogprob& token : tokens) {
      json entry = ChatLogprob(token.token, token.logprob);
      entry["top_logprobs"] = json::array();
      for (const auto& [other, logprob] : token.top) {
        entry["top_logprobs"].push_back(ChatLogprob(other, logprob));
      }
      content.push_back(entry);
    }
    return {{"content", content}, {"refusal", nullptr}};
  }
  json lists = {{"tokens", json::array()},
                {"token_logprobs", json::array()},
                {"top_logprobs", json::array()},
                {"text_offset", json::array()}};
  for (const TokenLogprob& token : tokens) {
    json top = json::object();
    for (const auto& [other, logprob] : token.top) top[Named(other)] = Bounded(logprob);
    lists["tokens"].push_back(Named(token.token));
    lists["token_logprobs"].push_back(Bounded(token.logprob));
    lists["top_logprobs"].push_back(top);
    lists["text_offset"].push_back(offset);
    offset += Characters(tokenizer_.Bytes(token.token));
  }
  return lists;
}

}  // namespace rvv_runner
