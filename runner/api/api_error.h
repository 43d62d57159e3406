// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace rvv_runner {

// Errors that have a code.
struct ErrorKind {
  int status;
  const char* code;
  const char* about;
};

constexpr ErrorKind kNoKey{401, "invalid_api_key", "the server has no such key"};
constexpr ErrorKind kNoModel{404, "model_not_found", "the server has another model"};
constexpr ErrorKind kTooLong{400, "context_length_exceeded",
                             "the prompt, or the answer behind it, is longer than the context"};
constexpr ErrorKind kUnsupportedSchema{400, "unsupported_schema",
                                       "grammars cannot express a keyword of the schema"};
constexpr ErrorKind kUnsupportedTools{400, "unsupported_tools",
                                      "the model's chat template has no form of calls"};
constexpr ErrorKind kQueueFull{429, "queue_full", "too many answers wait; try again later"};
constexpr ErrorKind kServerStopping{503, "server_stopping",
                                    "the server is stopping; also the last event of a stream"};
constexpr ErrorKind kErrorKinds[] = {
    kNoKey, kNoModel, kTooLong, kUnsupportedSchema, kUnsupportedTools, kQueueFull, kServerStopping};

// A request that is answered with an error: HTTP's status and the fields of OpenAI's error object.
class ApiError : public std::runtime_error {
 public:
  ApiError(const ErrorKind& kind, const std::string& message, const std::string& param = "")
      : ApiError(kind.status, message, param, kind.code) {}
  ApiError(int status, const std::string& message, std::string param = "", std::string code = "")
      : std::runtime_error(message),
        status_(status),
        param_(std::move(param)),
        code_(std::move(code)) {}

  int status() const { return status_; }
  const std::string& param() const { return param_; }  // the field at fault; may be empty
  const std::string& code() const { return code_; }    // may be empty

  std::string type() const { return TypeOf(status_); }
  static std::string TypeOf(int status) {
    if (status == 429) return "rate_limit_exceeded";
    return status >= 500 ? "server_error" : "invalid_request_error";
  }

 private:
  int status_;
  std::string param_;
  std::string code_;
};

}  // namespace rvv_runner
