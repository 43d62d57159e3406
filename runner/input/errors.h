// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace rvv_runner {

// An error that the user can correct: the program prints the message and exits with code 2.
class InputError : public std::runtime_error {
 public:
  explicit InputError(const std::string& what) : std::runtime_error(what) {}
};

// The prompt, or the answer behind it, is longer than a sequence may be.
class ContextError : public InputError {
 public:
  explicit ContextError(const std::string& what) : InputError(what) {}
};

// A failure of the library or the runtime: exit code 1.
class RunError : public std::runtime_error {
 public:
  explicit RunError(const std::string& what) : std::runtime_error(what) {}
};

}  // namespace rvv_runner
