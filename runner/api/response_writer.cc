// SPDX-License-Identifier: Apache-2.0
#include "api/response_writer.h"

#include <utility>

namespace rvv_runner {
namespace {

using nlohmann::json;

// Fields of a response that repeat the request, with OpenAI's defaults.
json Repeated(const ApiRequest& request, const OrderedJson& repeated) {
  json all = {{"instructions", nullptr},
              {"max_output_tokens", nullptr},
              {"metadata", json::object()},
              {"parallel_tool_calls", request.form.parallel},
              {"temperature", request.sampling.temperature},
              {"text", {{"format", {{"type", "text"}}}}},
              {"tool_choice", "auto"},
              {"tools", json::array()},
              {"top_p", request.sampling.top_p}};
  all.update(json(repeated));
  return all;
}

std::string TypeOf(AnswerPart::Kind kind) {
  if (kind == AnswerPart::Kind::kText) return "message";
  return kind == AnswerPart::Kind::kThought ? "reasoning" : "function_call";
}

// The name of an item's text in events.
std::string TextEvent(const json& item) {
  if (item["type"] == "message") return "response.output_text";
  return item["type"] == "reasoning" ? "response.reasoning_text"
                                     : "response.function_call_arguments";
}

json TextPart(const json& item, const std::string& text) {
  if (item["type"] == "reasoning") return {{"type", "reasoning_text"}, {"text", text}};
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", json::array()},
          {"logprobs", json::array()}};
}

}  // namespace

ResponseWriter::ResponseWriter(const ApiRequest& request, const OrderedJson& repeated,
                               const Tokenizer& tokenizer, AnswerName name, Thoughts thoughts)
    : name_(std::move(name)),
      repeated_(Repeated(request, repeated)),
      parts_(request.form.tools.empty() || !tokenizer.calls() ? nullptr : &*tokenizer.calls(),
             thoughts) {}

json ResponseWriter::Event(const std::string& type, json fields) {
  fields["type"] = type;
  fields["sequence_number"] = sequence_++;
  return fields;
}

json ResponseWriter::ItemEvent(const std::string& type, json fields) {
  fields["output_index"] = output_.size() - 1;
  fields["item_id"] = Open()["id"];
  if (Open()["type"] != "function_call") fields["content_index"] = 0;
  return Event(type, std::move(fields));
}

AnswerWriter::Events ResponseWriter::Begin() {
  return {Event("response.created", {{"response", Body()}}),
          Event("response.in_progress", {{"response", Body()}})};
}

bool ResponseWriter::IsOpen(Kind kind) const {
  return open_ && kind != Kind::kCall && output_.back()["type"] == TypeOf(kind);
}

void ResponseWriter::OpenItem(Kind kind, const std::string& name, Events* events) {
  const std::string number =
      name_.id.substr(name_.id.find('_') + 1) + "_" + std::to_string(output_.size());
  json item = {{"type", TypeOf(kind)}, {"status", "in_progress"}};
  if (kind == Kind::kText) {
    item["id"] = "msg_" + number;
    item["role"] = "assistant";
    item["content"] = json::array();
  } else if (kind == Kind::kThought) {
    item["id"] = "rs_" + number;
    item["summary"] = item["content"] = json::array();
  } else {
    item["id"] = "fc_" + number;
    item["call_id"] = "call_" + number;
    item["name"] = name;
    item["arguments"] = "";
  }
  output_.push_back(item);
  open_ = true;
  events->push_back(
      Event("response.output_item.added", {{"output_index", output_.size() - 1}, {"item", item}}));
  if (kind == Kind::kCall) return;
  const json part = TextPart(item, "");
  Open()["content"].push_back(part);
  events->push_back(ItemEvent("response.content_part.added", {{"part", part}}));
}

void ResponseWriter::CloseItem(const char* status, Events* events) {
  if (!std::exchange(open_, false)) return;
  json& item = Open();
  if (item["type"] == "function_call") {
    events->push_back(ItemEvent("response.function_call_arguments.done",
                                {{"arguments", item["arguments"]}, {"name", item["name"]}}));
  } else {
    const json& part = item["content"][0];
    json fields = {{"text", part["text"]}};
    if (item["type"] == "message") fields["logprobs"] = json::array();
    events->push_back(ItemEvent(TextEvent(item) + ".done", fields));
    events->push_back(ItemEvent("response.content_part.done", {{"part", part}}));
  }
  item["status"] = status;
  events->push_back(
      Event("response.output_item.done", {{"output_index", output_.size() - 1}, {"item", item}}));
}

void ResponseWriter::Take(const AnswerPart& part, Events* events) {
  if (!IsOpen(part.kind)) {
    CloseItem("completed", events);
    OpenItem(part.kind, part.text, events);
  }
  if (part.kind == Kind::kCall) return;
  json& item = Open();
  json& text = part.kind == Kind::kArguments ? item["arguments"] : item["content"][0]["text"];
  text = text.get<std::string>() + part.text;
  json fields = {{"delta", part.text}};
  if (part.kind == Kind::kText) fields["logprobs"] = json::array();
  events->push_back(ItemEvent(TextEvent(item) + ".delta", fields));
}

AnswerWriter::Events ResponseWriter::Next(size_t, const Piece& piece) {
  Events events;
  for (const AnswerPart& part : parts_.Next(piece.text)) Take(part, &events);
  return events;
}

AnswerWriter::Events ResponseWriter::End(size_t answer, const Ended& ended) {
  Events events;
  for (const AnswerPart& part : parts_.Finish()) Take(part, &events);
  usage_.Add(answer, ended);
  status_ = ended.finish == rvv_runner::Finish::kLength ? "incomplete" : "completed";
  CloseItem(status_.c_str(), &events);
  return events;
}

AnswerWriter::Events ResponseWriter::Finish() {
  return {Event("response." + status_, {{"response", Body()}})};
}

json ResponseWriter::Failed(const ApiError& error) {
  const json body = ErrorBody(error)["error"];
  return Event("error",
               {{"message", body["message"]}, {"code", body["code"]}, {"param", body["param"]}});
}

json ResponseWriter::Body() const {
  json body = repeated_;
  body.update({{"id", name_.id},
               {"object", "response"},
               {"created_at", name_.created},
               {"model", name_.model},
               {"status", status_},
               {"background", false},
               {"error", nullptr},
               {"incomplete_details", nullptr},
               {"output", output_},
               {"previous_response_id", nullptr},
               {"store", false},
               {"truncation", "disabled"},
               {"usage", nullptr}});
  if (status_ == "incomplete") body["incomplete_details"] = {{"reason", "max_output_tokens"}};
  if (status_ == "in_progress") return body;
  body["usage"] = {{"input_tokens", usage_.prompt()},
                   {"input_tokens_details", {{"cached_tokens", usage_.cached()}}},
                   {"output_tokens", usage_.answer()},
                   {"output_tokens_details", {{"reasoning_tokens", 0}}},
                   {"total_tokens", usage_.prompt() + usage_.answer()}};
  return body;
}

}  // namespace rvv_runner
