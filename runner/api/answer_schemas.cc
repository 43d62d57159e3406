// SPDX-License-Identifier: Apache-2.0
#include "api/answer_schemas.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/fields.h"

namespace rvv_runner {
namespace {

// A type is a name of JSON Schema, the name of another schema, or texts in quotes of which a value is
// one; "A or B" is a value of either. [TYPE] is a list. {"name": TYPE, "name?": TYPE} is an object,
// which may lack the second field. {"$": SCHEMA} has no shorter form.
constexpr char kSchemas[] = R"({
"Function": {"name": {"$": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}},
  "description?": "string", "parameters?": "object", "strict?": "boolean"},
"Tool": {"type": "'function'", "function": "Function"},
"ToolCall": {"id": "string", "type": "'function'",
  "function": {"name": "string", "arguments": "string"}},
"FunctionName": {"name": "string"},
"NamedTool": {"type": "'function'", "function": "FunctionName"},
"AllowedTools": {"mode": "'auto'|'required'", "tools": ["NamedTool"]},
"AllowedToolChoice": {"type": "'allowed_tools'", "allowed_tools": "AllowedTools"},
"ToolChoice": "'none'|'auto'|'required' or NamedTool or AllowedToolChoice",
"ResponseTool": {"type": "'function'",
  "name": {"$": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}},
  "description?": "string or null", "parameters?": "object or null", "strict?": "boolean or null"},
"ResponseNamedTool": {"type": "'function'", "name": "string"},
"ResponseAllowedTools": {"type": "'allowed_tools'", "mode": "'auto'|'required'",
  "tools": ["ResponseNamedTool"]},
"ResponseToolChoice": "'none'|'auto'|'required' or ResponseNamedTool or ResponseAllowedTools",
"ResponseTextFormat": {"type": "'text'|'json_object'|'json_schema'", "name?": "string",
  "description?": "string", "schema?": "object", "strict?": "boolean or null"},
"ResponseText": {"format?": "ResponseTextFormat", "verbosity?": "string or null"},
"ResponseItem": {"type?": "'message'|'function_call'|'function_call_output'|'reasoning'"},
"ResponseFormat": {"type": "'text'|'json_object'|'json_schema'",
  "json_schema?": {
    "name?": "string", "description?": "string", "schema": "object", "strict?": "boolean"}},
"Error": {"error": {"message": "string", "type": "string",
  "param": "string or null", "code": "string or null"}},
"Usage": {"prompt_tokens": "integer", "completion_tokens": "integer", "total_tokens": "integer",
  "prompt_tokens_details?": {"cached_tokens?": "integer"}},
"TokenLogprob": {"token": "string", "logprob": "number", "bytes": ["integer"],
  "top_logprobs?": ["TokenLogprob"]},
"ChatLogprobs or null": {"content?": ["TokenLogprob"], "refusal?": "null"},
"ChatAnswer": {"role": "'assistant'", "content": "string or null", "reasoning_content?": "string",
  "refusal?": "null", "tool_calls?": ["ToolCall"]},
"ChatChoice": {"index": "integer", "message": "ChatAnswer", "logprobs?": "ChatLogprobs",
  "finish_reason": "'stop'|'length'|'tool_calls'"},
"ChatCompletion": {"id": "string", "object": "'chat.completion'", "created": "integer",
  "model": "string", "choices": ["ChatChoice"], "usage": "Usage"},
"ChatChunkChoice": {"index": "integer",
  "delta": {"role?": "string", "content?": "string", "reasoning_content?": "string",
    "tool_calls?": ["object"]},
  "logprobs?": "ChatLogprobs", "finish_reason": "string or null"},
"ChatCompletionChunk": {"id": "string", "object": "'chat.completion.chunk'", "created": "integer",
  "model": "string", "choices": ["ChatChunkChoice"], "usage?": "Usage or null"},
"TopLogprobs": {"$": {"type": "object", "additionalProperties": {"type": "number"}}},
"CompletionLogprobs or null": {"tokens": ["string"], "token_logprobs": ["number or null"],
  "top_logprobs": ["TopLogprobs or null"], "text_offset": ["integer"]},
"CompletionChoice": {"index": "integer", "text": "string", "logprobs?": "CompletionLogprobs",
  "finish_reason": "string or null"},
"Completion": {"id": "string", "object": "'text_completion'", "created": "integer",
  "model": "string", "choices": ["CompletionChoice"], "usage?": "Usage or null"},
"OutputText": {"type": "'output_text'", "text": "string", "annotations": ["object"],
  "logprobs?": ["object"]},
"ReasoningText": {"type": "'reasoning_text'", "text": "string"},
"OutputItem": {"id": "string", "type": "'message'|'function_call'|'reasoning'",
  "status": "'in_progress'|'completed'|'incomplete'", "role?": "'assistant'",
  "content?": ["OutputText or ReasoningText"], "summary?": ["object"], "call_id?": "string",
  "name?": "string", "arguments?": "string"},
"ResponseUsage": {"input_tokens": "integer", "input_tokens_details?": {"cached_tokens?": "integer"},
  "output_tokens": "integer", "output_tokens_details?": {"reasoning_tokens?": "integer"},
  "total_tokens": "integer"},
"IncompleteDetails": {"reason": "'max_output_tokens'"},
"Response": {"id": "string", "object": "'response'", "created_at": "integer",
  "status": "'in_progress'|'completed'|'incomplete'",
  "incomplete_details?": "IncompleteDetails or null", "model": "string", "output": ["OutputItem"],
  "usage": "ResponseUsage or null"},
"ResponseEvent": {"type": "string", "sequence_number": "integer"},
"Embedding": {"object": "'embedding'", "index": "integer",
  "embedding": {"$": {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string"}]}}},
"EmbeddingList": {"object": "'list'", "data": ["Embedding"], "model": "string",
  "usage": {"prompt_tokens?": "integer", "total_tokens?": "integer"}},
"OllamaMessage": {"role": "'assistant'", "content": "string", "thinking?": "string",
  "tool_calls?": ["object"]},
"OllamaAnswer": {"model": "string", "created_at": "string", "done": "boolean",
  "done_reason?": "'stop'|'length'|'load'", "message?": "OllamaMessage", "response?": "string",
  "thinking?": "string", "total_duration?": "integer", "load_duration?": "integer",
  "prompt_eval_count?": "integer", "prompt_eval_duration?": "integer", "eval_count?": "integer",
  "eval_duration?": "integer"},
"OllamaVectors": {"model": "string", "embeddings": [["number"]], "total_duration?": "integer",
  "load_duration?": "integer", "prompt_eval_count?": "integer"},
"OllamaVector": {"embedding": ["number"]},
"OllamaModel": {"name?": "string", "model?": "string", "size?": "integer", "digest?": "string",
  "details?": "object", "model_info?": "object", "capabilities?": ["string"]},
"OllamaModels": {"models": ["OllamaModel"]},
"OllamaVersion": {"version": "string"},
"OllamaError": {"error": "string"},
"Tokens": {"count": "integer", "max_model_len": "integer", "tokens": ["integer"],
  "token_strs?": {"$": {"type": ["array", "null"], "items": {"type": "string"}}}},
"Text": {"prompt": "string"},
"TokenizerInfo": {"bos_token": "string or null", "eos_token": "string or null",
  "max_model_len": "integer", "vocab_size": "integer"},
"Model": {"id": "string", "object": "'model'", "created": "integer", "owned_by": "string",
  "context_window?": "integer"},
"ModelList": {"object": "'list'", "data": ["Model"]},
"Health": {"status": "'ok'", "model": "string"},
"Description": "object"
})";

constexpr std::string_view kOrNull = " or null";

std::vector<std::string> Split(std::string_view text, std::string_view mark) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end = 0; end < text.size(); begin = end + mark.size()) {
    end = std::min(text.find(mark, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
  }
  return parts;
}

bool IsSchema(const std::string& name) { return name.front() >= 'A' && name.front() <= 'Z'; }
bool IsType(const std::string& name) { return name.front() >= 'a' && name.front() <= 'z'; }

OrderedJson Named(const std::string& name) {
  if (IsSchema(name)) return Ref(name);
  if (IsType(name)) return {{"type", name}};
  OrderedJson texts = OrderedJson::array();
  for (const std::string& text : Split(name, "|")) texts.push_back(text.substr(1, text.size() - 2));
  return {{"type", "string"}, {"enum", texts}};
}

OrderedJson EitherOf(const std::vector<std::string>& names) {
  if (names.size() == 1) return Named(names[0]);
  if (std::ranges::all_of(names, IsType)) return {{"type", names}};
  OrderedJson schemas = OrderedJson::array();
  for (const std::string& name : names) schemas.push_back(Named(name));
  return {{"anyOf", schemas}};
}

OrderedJson SchemaOfType(const OrderedJson& type) {
  if (type.is_string()) return EitherOf(Split(type.get<std::string>(), " or "));
  if (type.is_array()) return {{"type", "array"}, {"items", SchemaOfType(type[0])}};
  if (type.contains("$")) return type["$"];
  OrderedJson schema = {{"type", "object"}};
  OrderedJson properties;
  for (const auto& [field, value] : type.items()) {
    const bool required = !field.ends_with('?');
    const std::string name = required ? field : field.substr(0, field.size() - 1);
    if (required) schema["required"].push_back(name);
    properties[name] = SchemaOfType(value);
  }
  schema["properties"] = std::move(properties);
  return schema;
}

}  // namespace

OrderedJson AnswerSchemas() {
  const OrderedJson types = ParseOrderedJson(kSchemas, "the schemas");
  OrderedJson schemas;
  for (const auto& [name, type] : types.items()) {
    OrderedJson schema = SchemaOfType(type);
    const bool nullable = name.ends_with(kOrNull);
    if (nullable) schema["type"] = {"object", "null"};
    schemas[nullable ? name.substr(0, name.size() - kOrNull.size()) : name] = std::move(schema);
  }
  return schemas;
}

}  // namespace rvv_runner
