// SPDX-License-Identifier: Apache-2.0
#include "api/answer_schemas.h"

namespace rvv_runner {
namespace {

constexpr char kRequestParts[] = R"({
"Function": {"type": "object", "required": ["name"], "properties": {
  "name": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
  "description": {"type": "string"},
  "parameters": {"type": "object"},
  "strict": {"type": "boolean"}}},
"Tool": {"type": "object", "required": ["type", "function"], "properties": {
  "type": {"type": "string", "enum": ["function"]},
  "function": {"$ref": "#/components/schemas/Function"}}},
"ToolCall": {"type": "object", "required": ["id", "type", "function"], "properties": {
  "id": {"type": "string"},
  "type": {"type": "string", "enum": ["function"]},
  "function": {"type": "object", "required": ["name", "arguments"], "properties": {
    "name": {"type": "string"},
    "arguments": {"type": "string"}}}}},
"FunctionName": {"type": "object", "required": ["name"], "properties": {
  "name": {"type": "string"}}},
"NamedTool": {"type": "object", "required": ["type", "function"], "properties": {
  "type": {"type": "string", "enum": ["function"]},
  "function": {"$ref": "#/components/schemas/FunctionName"}}},
"AllowedTools": {"type": "object", "required": ["mode", "tools"], "properties": {
  "mode": {"type": "string", "enum": ["auto", "required"]},
  "tools": {"type": "array", "items": {"$ref": "#/components/schemas/NamedTool"}}}},
"AllowedToolChoice": {"type": "object", "required": ["type", "allowed_tools"], "properties": {
  "type": {"type": "string", "enum": ["allowed_tools"]},
  "allowed_tools": {"$ref": "#/components/schemas/AllowedTools"}}},
"ToolChoice": {"anyOf": [
  {"type": "string", "enum": ["none", "auto", "required"]},
  {"$ref": "#/components/schemas/NamedTool"},
  {"$ref": "#/components/schemas/AllowedToolChoice"}]},
"ResponseTool": {"type": "object", "required": ["type", "name"], "properties": {
  "type": {"type": "string", "enum": ["function"]},
  "name": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
  "description": {"type": ["string", "null"]},
  "parameters": {"type": ["object", "null"]},
  "strict": {"type": ["boolean", "null"]}}},
"ResponseNamedTool": {"type": "object", "required": ["type", "name"], "properties": {
  "type": {"type": "string", "enum": ["function"]},
  "name": {"type": "string"}}},
"ResponseAllowedTools": {"type": "object", "required": ["type", "mode", "tools"], "properties": {
  "type": {"type": "string", "enum": ["allowed_tools"]},
  "mode": {"type": "string", "enum": ["auto", "required"]},
  "tools": {"type": "array", "items": {"$ref": "#/components/schemas/ResponseNamedTool"}}}},
"ResponseToolChoice": {"anyOf": [
  {"type": "string", "enum": ["none", "auto", "required"]},
  {"$ref": "#/components/schemas/ResponseNamedTool"},
  {"$ref": "#/components/schemas/ResponseAllowedTools"}]},
"ResponseTextFormat": {"type": "object", "required": ["type"], "properties": {
  "type": {"type": "string", "enum": ["text", "json_object", "json_schema"]},
  "name": {"type": "string"},
  "description": {"type": "string"},
  "schema": {"type": "object"},
  "strict": {"type": ["boolean", "null"]}}},
"ResponseText": {"type": "object", "properties": {
  "format": {"$ref": "#/components/schemas/ResponseTextFormat"},
  "verbosity": {"type": ["string", "null"]}}},
"ResponseItem": {"type": "object", "properties": {
  "type": {"type": "string",
    "enum": ["message", "function_call", "function_call_output", "reasoning"]}}},
"ResponseFormat": {"type": "object", "required": ["type"], "properties": {
  "type": {"type": "string", "enum": ["text", "json_object", "json_schema"]},
  "json_schema": {"type": "object", "required": ["schema"], "properties": {
    "name": {"type": "string"},
    "description": {"type": "string"},
    "schema": {"type": "object"},
    "strict": {"type": "boolean"}}}}}
})";

constexpr char kAnswers[] = R"({
"Error": {"type": "object", "required": ["error"], "properties": {
  "error": {"type": "object", "required": ["message", "type", "param", "code"], "properties": {
    "message": {"type": "string"},
    "type": {"type": "string"},
    "param": {"type": ["string", "null"]},
    "code": {"type": ["string", "null"]}}}}},
"Usage": {"type": "object",
  "required": ["prompt_tokens", "completion_tokens", "total_tokens"], "properties": {
  "prompt_tokens": {"type": "integer"},
  "completion_tokens": {"type": "integer"},
  "total_tokens": {"type": "integer"},
  "prompt_tokens_details": {"type": "object", "properties": {
    "cached_tokens": {"type": "integer"}}}}},
"TokenLogprob": {"type": "object", "required": ["token", "logprob", "bytes"], "properties": {
  "token": {"type": "string"},
  "logprob": {"type": "number"},
  "bytes": {"type": "array", "items": {"type": "integer"}},
  "top_logprobs": {"type": "array", "items": {"$ref": "#/components/schemas/TokenLogprob"}}}},
"ChatLogprobs": {"type": ["object", "null"], "properties": {
  "content": {"type": "array", "items": {"$ref": "#/components/schemas/TokenLogprob"}},
  "refusal": {"type": "null"}}},
"ChatAnswer": {"type": "object", "required": ["role", "content"], "properties": {
  "role": {"type": "string", "enum": ["assistant"]},
  "content": {"type": ["string", "null"]},
  "reasoning_content": {"type": "string"},
  "refusal": {"type": "null"},
  "tool_calls": {"type": "array", "items": {"$ref": "#/components/schemas/ToolCall"}}}},
"ChatChoice": {"type": "object", "required": ["index", "message", "finish_reason"], "properties": {
  "index": {"type": "integer"},
  "message": {"$ref": "#/components/schemas/ChatAnswer"},
  "logprobs": {"$ref": "#/components/schemas/ChatLogprobs"},
  "finish_reason": {"type": "string", "enum": ["stop", "length", "tool_calls"]}}},
"ChatCompletion": {"type": "object",
  "required": ["id", "object", "created", "model", "choices", "usage"], "properties": {
  "id": {"type": "string"},
  "object": {"type": "string", "enum": ["chat.completion"]},
  "created": {"type": "integer"},
  "model": {"type": "string"},
  "choices": {"type": "array", "items": {"$ref": "#/components/schemas/ChatChoice"}},
  "usage": {"$ref": "#/components/schemas/Usage"}}},
"ChatChunkChoice": {"type": "object", "required": ["index", "delta", "finish_reason"],
  "properties": {
  "index": {"type": "integer"},
  "delta": {"type": "object", "properties": {
    "role": {"type": "string"},
    "content": {"type": "string"},
    "reasoning_content": {"type": "string"},
    "tool_calls": {"type": "array", "items": {"type": "object"}}}},
  "logprobs": {"$ref": "#/components/schemas/ChatLogprobs"},
  "finish_reason": {"type": ["string", "null"]}}},
"ChatCompletionChunk": {"type": "object",
  "required": ["id", "object", "created", "model", "choices"], "properties": {
  "id": {"type": "string"},
  "object": {"type": "string", "enum": ["chat.completion.chunk"]},
  "created": {"type": "integer"},
  "model": {"type": "string"},
  "choices": {"type": "array", "items": {"$ref": "#/components/schemas/ChatChunkChoice"}},
  "usage": {"anyOf": [{"$ref": "#/components/schemas/Usage"}, {"type": "null"}]}}},
"TopLogprobs": {"type": "object", "additionalProperties": {"type": "number"}},
"CompletionLogprobs": {"type": ["object", "null"],
  "required": ["tokens", "token_logprobs", "top_logprobs", "text_offset"], "properties": {
  "tokens": {"type": "array", "items": {"type": "string"}},
  "token_logprobs": {"type": "array", "items": {"type": ["number", "null"]}},
  "top_logprobs": {"type": "array", "items": {"anyOf": [
    {"$ref": "#/components/schemas/TopLogprobs"}, {"type": "null"}]}},
  "text_offset": {"type": "array", "items": {"type": "integer"}}}},
"CompletionChoice": {"type": "object", "required": ["index", "text", "finish_reason"],
  "properties": {
  "index": {"type": "integer"},
  "text": {"type": "string"},
  "logprobs": {"$ref": "#/components/schemas/CompletionLogprobs"},
  "finish_reason": {"type": ["string", "null"]}}},
"Completion": {"type": "object",
  "required": ["id", "object", "created", "model", "choices"], "properties": {
  "id": {"type": "string"},
  "object": {"type": "string", "enum": ["text_completion"]},
  "created": {"type": "integer"},
  "model": {"type": "string"},
  "choices": {"type": "array", "items": {"$ref": "#/components/schemas/CompletionChoice"}},
  "usage": {"anyOf": [{"$ref": "#/components/schemas/Usage"}, {"type": "null"}]}}},
"OutputText": {"type": "object", "required": ["type", "text", "annotations"], "properties": {
  "type": {"type": "string", "enum": ["output_text"]},
  "text": {"type": "string"},
  "annotations": {"type": "array", "items": {"type": "object"}},
  "logprobs": {"type": "array", "items": {"type": "object"}}}},
"ReasoningText": {"type": "object", "required": ["type", "text"], "properties": {
  "type": {"type": "string", "enum": ["reasoning_text"]},
  "text": {"type": "string"}}},
"OutputItem": {"type": "object", "required": ["id", "type", "status"], "properties": {
  "id": {"type": "string"},
  "type": {"type": "string", "enum": ["message", "function_call", "reasoning"]},
  "status": {"type": "string", "enum": ["in_progress", "completed", "incomplete"]},
  "role": {"type": "string", "enum": ["assistant"]},
  "content": {"type": "array", "items": {"anyOf": [
    {"$ref": "#/components/schemas/OutputText"}, {"$ref": "#/components/schemas/ReasoningText"}]}},
  "summary": {"type": "array", "items": {"type": "object"}},
  "call_id": {"type": "string"},
  "name": {"type": "string"},
  "arguments": {"type": "string"}}},
"ResponseUsage": {"type": "object",
  "required": ["input_tokens", "output_tokens", "total_tokens"], "properties": {
  "input_tokens": {"type": "integer"},
  "input_tokens_details": {"type": "object", "properties": {
    "cached_tokens": {"type": "integer"}}},
  "output_tokens": {"type": "integer"},
  "output_tokens_details": {"type": "object", "properties": {
    "reasoning_tokens": {"type": "integer"}}},
  "total_tokens": {"type": "integer"}}},
"IncompleteDetails": {"type": "object", "required": ["reason"], "properties": {
  "reason": {"type": "string", "enum": ["max_output_tokens"]}}},
"Response": {"type": "object",
  "required": ["id", "object", "created_at", "status", "model", "output", "usage"], "properties": {
  "id": {"type": "string"},
  "object": {"type": "string", "enum": ["response"]},
  "created_at": {"type": "integer"},
  "status": {"type": "string", "enum": ["in_progress", "completed", "incomplete"]},
  "incomplete_details": {"anyOf": [
    {"$ref": "#/components/schemas/IncompleteDetails"}, {"type": "null"}]},
  "model": {"type": "string"},
  "output": {"type": "array", "items": {"$ref": "#/components/schemas/OutputItem"}},
  "usage": {"anyOf": [{"$ref": "#/components/schemas/ResponseUsage"}, {"type": "null"}]}}},
"ResponseEvent": {"type": "object", "required": ["type", "sequence_number"], "properties": {
  "type": {"type": "string"},
  "sequence_number": {"type": "integer"}}},
"Embedding": {"type": "object", "required": ["object", "index", "embedding"], "properties": {
  "object": {"type": "string", "enum": ["embedding"]},
  "index": {"type": "integer"},
  "embedding": {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string"}]}}},
"EmbeddingList": {"type": "object", "required": ["object", "data", "model", "usage"], "properties": {
  "object": {"type": "string", "enum": ["list"]},
  "model": {"type": "string"},
  "data": {"type": "array", "items": {"$ref": "#/components/schemas/Embedding"}},
  "usage": {"type": "object", "properties": {
    "prompt_tokens": {"type": "integer"}, "total_tokens": {"type": "integer"}}}}},
"OllamaMessage": {"type": "object", "required": ["role", "content"], "properties": {
  "role": {"type": "string", "enum": ["assistant"]},
  "content": {"type": "string"},
  "thinking": {"type": "string"},
  "tool_calls": {"type": "array", "items": {"type": "object"}}}},
"OllamaAnswer": {"type": "object", "required": ["model", "created_at", "done"], "properties": {
  "model": {"type": "string"},
  "created_at": {"type": "string"},
  "done": {"type": "boolean"},
  "done_reason": {"type": "string", "enum": ["stop", "length", "load"]},
  "message": {"$ref": "#/components/schemas/OllamaMessage"},
  "response": {"type": "string"},
  "thinking": {"type": "string"},
  "total_duration": {"type": "integer"},
  "load_duration": {"type": "integer"},
  "prompt_eval_count": {"type": "integer"},
  "prompt_eval_duration": {"type": "integer"},
  "eval_count": {"type": "integer"},
  "eval_duration": {"type": "integer"}}},
"OllamaVectors": {"type": "object", "required": ["model", "embeddings"], "properties": {
  "model": {"type": "string"},
  "embeddings": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
  "total_duration": {"type": "integer"},
  "load_duration": {"type": "integer"},
  "prompt_eval_count": {"type": "integer"}}},
"OllamaVector": {"type": "object", "required": ["embedding"], "properties": {
  "embedding": {"type": "array", "items": {"type": "number"}}}},
"OllamaModel": {"type": "object", "properties": {
  "name": {"type": "string"},
  "model": {"type": "string"},
  "size": {"type": "integer"},
  "digest": {"type": "string"},
  "details": {"type": "object"},
  "model_info": {"type": "object"},
  "capabilities": {"type": "array", "items": {"type": "string"}}}},
"OllamaModels": {"type": "object", "required": ["models"], "properties": {
  "models": {"type": "array", "items": {"$ref": "#/components/schemas/OllamaModel"}}}},
"OllamaVersion": {"type": "object", "required": ["version"], "properties": {
  "version": {"type": "string"}}},
"OllamaError": {"type": "object", "required": ["error"], "properties": {
  "error": {"type": "string"}}},
"Tokens": {"type": "object", "required": ["count", "max_model_len", "tokens"], "properties": {
  "count": {"type": "integer"},
  "max_model_len": {"type": "integer"},
  "tokens": {"type": "array", "items": {"type": "integer"}},
  "token_strs": {"type": ["array", "null"], "items": {"type": "string"}}}},
"Text": {"type": "object", "required": ["prompt"], "properties": {
  "prompt": {"type": "string"}}},
"TokenizerInfo": {"type": "object",
  "required": ["bos_token", "eos_token", "max_model_len", "vocab_size"], "properties": {
  "bos_token": {"type": ["string", "null"]},
  "eos_token": {"type": ["string", "null"]},
  "max_model_len": {"type": "integer"},
  "vocab_size": {"type": "integer"}}},
"Model": {"type": "object", "required": ["id", "object", "created", "owned_by"], "properties": {
  "id": {"type": "string"},
  "object": {"type": "string", "enum": ["model"]},
  "created": {"type": "integer"},
  "owned_by": {"type": "string"},
  "context_window": {"type": "integer"}}},
"ModelList": {"type": "object", "required": ["object", "data"], "properties": {
  "object": {"type": "string", "enum": ["list"]},
  "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}}},
"Health": {"type": "object", "required": ["status", "model"], "properties": {
  "status": {"type": "string", "enum": ["ok"]},
  "model": {"type": "string"}}},
"Description": {"type": "object"}
})";

}  // namespace

OrderedJson AnswerSchemas() {
  OrderedJson schemas = OrderedJson::parse(kRequestParts);
  schemas.update(OrderedJson::parse(kAnswers));
  return schemas;
}

}  // namespace rvv_runner
