// SPDX-License-Identifier: Apache-2.0
#include "api/response_writer.h"

#include <utility>

namespace rvv_runner {
namespace {

// Fields of a response that repeat the request, with OpenAI's defaults.
OrderedJson Repeated(const ApiRequest& request, const OrderedJson& repeated) {
  OrderedJson all = {{"instructions", nullptr},
                     {"max_output_tokens", nullptr},
                     {"metadata", OrderedJson::object()},
                     {"parallel_tool_calls", request.form.parallel},
                     {"temperature", request.sampling.temperature},
                     {"text", {{"format", {{"type", "text"}}}}},
                     {"tool_choice", "auto"},
                     {"tools", OrderedJson::array()},
                     {"top_p", request.sampling.top_p}};
  all.update(repeated);
  return all;
}

std::string TypeOf(AnswerPart::Kind kind) {
  if (kind == AnswerPart::Kind::kText) return "message";
  return kind == AnswerPart::Kind::kThought ? "reasoning" : "function_call";
}

// The name of an item's text in events.
std::string TextEvent(const OrderedJson& item) {
  if (item["type"] == "message") return "response.output_text";
  return item["type"] == "reasoning" ? "response.reasoning_text"
                                     : "response.function_call_arguments";
}

OrderedJson TextPart(const OrderedJson& item, const std::string& text) {
  if (item["type"] == "reasoning") return {{"type", "reasoning_text"}, {"text", text}};
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", OrderedJson::array()},
          {"logprobs", OrderedJson::array()}};
}

}  // namespace

ResponseWriter::ResponseWriter(const ApiRequest& request, const OrderedJson& repeated,
                               const Tokenizer& tokenizer, AnswerName name, Thoughts thoughts)
    : name_(std::move(name)),
      repeated_(Repeated(request, repeated)),
      parts_(request.form.tools.empty() || !tokenizer.calls() ? nullptr : &*tokenizer.calls(),
             thoughts) {}

OrderedJson ResponseWriter::Event(const std::string& type, const OrderedJson& fields) {
  OrderedJson event = {{"type", type}, {"sequence_number", sequence_++}};
  event.update(fields);
  return event;
}

OrderedJson ResponseWriter::ItemEvent(const std::string& type, const OrderedJson& fields) {
  OrderedJson place = {{"item_id", Open()["id"]}, {"output_index", output_.size() - 1}};
  if (Open()["type"] != "function_call") place["content_index"] = 0;
  place.update(fields);
  return Event(type, place);
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
  const char* prefix = kind == Kind::kText ? "msg_" : kind == Kind::kThought ? "rs_" : "fc_";
  OrderedJson item = {{"type", TypeOf(kind)}, {"id", prefix + number}, {"status", "in_progress"}};
  if (kind == Kind::kText) {
    item["role"] = "assistant";
    item["content"] = OrderedJson::array();
  } else if (kind == Kind::kThought) {
    item["summary"] = item["content"] = OrderedJson::array();
  } else {
    item["call_id"] = "call_" + number;
    item["name"] = name;
    item["arguments"] = "";
  }
  output_.push_back(item);
  open_ = true;
  events->push_back(
      Event("response.output_item.added", {{"output_index", output_.size() - 1}, {"item", item}}));
  if (kind == Kind::kCall) return;
  const OrderedJson part = TextPart(item, "");
  Open()["content"].push_back(part);
  events->push_back(ItemEvent("response.content_part.added", {{"part", part}}));
}

void ResponseWriter::CloseItem(const char* status, Events* events) {
  if (!std::exchange(open_, false)) return;
  OrderedJson& item = Open();
  if (item["type"] == "function_call") {
    events->push_back(ItemEvent("response.function_call_arguments.done",
                                {{"arguments", item["arguments"]}, {"name", item["name"]}}));
  } else {
    const OrderedJson& part = item["content"][0];
    OrderedJson fields = {{"text", part["text"]}};
    if (item["type"] == "message") fields["logprobs"] = OrderedJson::array();
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
  OrderedJson& item = Open();
  OrderedJson& text =
      part.kind == Kind::kArguments ? item["arguments"] : item["content"][0]["text"];
  text = text.get<std::string>() + part.text;
  OrderedJson fields = {{"delta", part.text}};
  if (part.kind == Kind::kText) fields["logprobs"] = OrderedJson::array();
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

OrderedJson ResponseWriter::Failed(const ApiError& error) {
  const OrderedJson body = ErrorBody(error)["error"];
  return Event("error",
               {{"message", body["message"]}, {"code", body["code"]}, {"param", body["param"]}});
}

OrderedJson ResponseWriter::Body() const {
  OrderedJson body = {{"id", name_.id},
                      {"object", "response"},
                      {"created_at", name_.created},
                      {"status", status_},
                      {"background", false},
                      {"error", nullptr},
                      {"incomplete_details", nullptr},
                      {"model", name_.model},
                      {"output", output_},
                      {"previous_response_id", nullptr},
                      {"store", false},
                      {"truncation", "disabled"},
                      {"usage", nullptr}};
  body.update(repeated_);
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
