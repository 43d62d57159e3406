// SPDX-License-Identifier: Apache-2.0
// Runs a compiled model on TVM's runtime.
// Exit code 0: answered; 1: the library or the runtime failed; 2: the input is wrong.
#include <fcntl.h>
#include <tvm/ffi/error.h>
#include <unistd.h>

#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include "input/errors.h"
#include "input/log.h"
#include "program/arguments.h"
#include "program/bench.h"
#include "program/chat.h"
#include "program/prompt.h"
#include "program/run.h"
#include "program/serve.h"

namespace rvv_runner {
namespace {

// Keeps files and connections from getting the number of a standard stream that the caller closed:
// answers and lines of the log would go into them. Reading such an input and writing such an output
// still fails.
void HoldStandardStreams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0) continue;
    // The lowest free number is that of the stream.
    if (open("/dev/null", stream == STDOUT_FILENO ? O_RDONLY : O_WRONLY) < 0) return;
  }
}

int Run(const std::vector<std::string>& words) {
  if (!words.empty() && words[0] == "serve" && Serve != nullptr)
    return Serve({words.begin() + 1, words.end()});
  if (!words.empty() && words[0] == "bench") return Bench({words.begin() + 1, words.end()});
  if (!words.empty() && words[0] == "run") return RunTensors({words.begin() + 1, words.end()});
  if (!words.empty() && !words[0].starts_with('-')) {
    throw InputError("there is no command '" + words[0] +
                     "'; the commands are serve, bench and run. --prompt TEXT gives a prompt, " +
                     "--help lists the options");
  }
  const Arguments arguments = ParseArguments(words);
  if (arguments.help) {
    std::cout << kUsage;
    return 0;
  }
  return arguments.chat ? Chat(arguments) : AnswerPrompt(arguments);
}

}  // namespace
}  // namespace rvv_runner

int main(int argc, char** argv) {
  using rvv_runner::Log, rvv_runner::LogLevel;
  rvv_runner::HoldStandardStreams();
  try {
    return rvv_runner::Run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const rvv_runner::InputError& error) {
    Log(LogLevel::kError, error.what());
    return 2;
  } catch (const tvm::ffi::Error& error) {
    Log(LogLevel::kError,
        "failed: " + std::string(error.kind()) + ": " + std::string(error.message()));
    return 1;
  } catch (const std::bad_alloc&) {
    Log(LogLevel::kError, "failed: out of memory");
    return 1;
  } catch (const std::exception& error) {
    Log(LogLevel::kError, std::string("failed: ") + error.what());
    return 1;
  }
}
