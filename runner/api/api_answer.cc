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

std::string Reason(const Ended& ended) {
  return ended.finish == Finish::kLength ? "length" : "stop";
}

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
                           std::string model, int64_t created)
    : tokenizer_(tokenizer),
      chat_(request.chat),
      wants_logprobs_(request.sampling.top_logprobs >= 0),
      include_usage_(request.include_usage),
      id_(std::move(id)),
      model_(std::move(model)),
      created_(created),
      usage_(request.n),
      collected_(request.answers()),
      offsets_(request.answers()) {}

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

json AnswerWriter::Chunk(size_t answer, const Piece& piece) {
  if (piece.text.empty() && (!wants_logprobs_ || piece.logprobs.empty())) return nullptr;
  const json delta = chat_ ? json{{"content", piece.text}} : json(piece.text);
  const json logprobs = Logprobs(piece.logprobs, offsets_[answer]);
  offsets_[answer] += Characters(piece.text);
  return Choice(answer, delta, logprobs, nullptr);
}

json AnswerWriter::Last(size_t answer, const Ended& ended) {
  usage_.Add(answer, ended);
  return Choice(answer, chat_ ? json::object() : json(""), nullptr, Reason(ended));
}

json AnswerWriter::Tail() const {
  json frame = Frame(chat_ ? "chat.completion.chunk" : "text_completion");
  frame["usage"] = usage_.Body();
  return frame;
}

void AnswerWriter::Add(size_t answer, const Piece& piece) {
  Collected& collected = collected_[answer];
  collected.text += piece.text;
  const auto& logprobs = piece.logprobs;
  collected.logprobs.insert(collected.logprobs.end(), logprobs.begin(), logprobs.end());
}

void AnswerWriter::Add(size_t answer, const Ended& ended) {
  usage_.Add(answer, ended);
  collected_[answer].reason = Reason(ended);
}

json AnswerWriter::Body() const {
  json frame = Frame(chat_ ? "chat.completion" : "text_completion");
  for (size_t i = 0; i < collected_.size(); ++i) {
    const Collected& collected = collected_[i];
    json choice = {{"index", i},
                   {"logprobs", Logprobs(collected.logprobs, 0)},
                   {"finish_reason", collected.reason}};
    if (chat_) {
      choice["message"] = {
          {"role", "assistant"}, {"content", collected.text}, {"refusal", nullptr}};
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
