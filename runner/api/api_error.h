// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace rvv_runner {

// A request that is answered with an error: HTTP's status and the fields of OpenAI's error object.
class ApiError : public std::runtime_error {
 public:
  ApiError(int status, const std::string& message, std::string param = "", std::string code = "")
      : std::runtime_error(message),
        status_(status),
        param_(std::move(param)),
        code_(std::move(code)) {}

  int status() const { return status_; }
  const std::string& param() const { return param_; }  // the field at fault; may be empty
  const std::string& code() const { return code_; }    // may be empty

  std::string type() const {
    if (status_ == 429) return "rate_limit_exceeded";
    return status_ >= 500 ? "server_error" : "invalid_request_error";
  }

 private:
  int status_;
  std::string param_;
  std::string code_;
};

}  // namespace rvv_runner
