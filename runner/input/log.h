// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace rvv_runner {

enum class LogLevel { kError, kWarn, kInfo, kDebug };

// Parses error, warn, info or debug. Throws InputError.
LogLevel ParseLogLevel(const std::string& name);

// The most detailed level that Log writes from now on (info).
void SetLogLevel(LogLevel most);

// Writes a line to the standard error, at once and whole. If that is systemd's journal, the line
// begins with its priority.
void Log(LogLevel level, const std::string& text);

// The text of printable ASCII without quotation marks, and not too long: a client cannot forge the
// end of a quoted text, nor a line.
std::string Loggable(const std::string& text);

}  // namespace rvv_runner
