// SPDX-License-Identifier: Apache-2.0
#include "program/report.h"

#include <iomanip>
#include <sstream>

#include "input/json.h"

namespace rvv_runner {
namespace {

template <typename T>
std::string Joined(const std::vector<T>& values, const char* between) {
  std::ostringstream text;
  text << std::setprecision(9);
  for (size_t i = 0; i < values.size(); ++i) text << (i ? between : "") << values[i];
  return text.str();
}

// Lists of numbers as JSON.
template <typename T>
std::string Listed(const std::vector<std::vector<T>>& lists) {
  std::vector<std::string> all;
  for (const auto& one : lists) all.push_back("[" + Joined(one, ",") + "]");
  return "[" + Joined(all, ",") + "]";
}

}  // namespace

void Report(const Arguments& arguments, int64_t vlen, const std::vector<int32_t>& tokens,
            const std::vector<std::vector<int32_t>>& beside,
            const std::vector<std::vector<float>>& vectors, const Ended& ended,
            const std::optional<std::string>& text, const std::string& device, std::ostream& out) {
  if (!arguments.json && !vectors.empty()) {
    for (const auto& vector : vectors) out << "[" << Joined(vector, ", ") << "]\n";
    return;
  }
  if (!arguments.json) {
    out << "tokens: " << Joined(tokens, " ") << "\n"
        << std::fixed << std::setprecision(3) << "prefill: " << arguments.tokens.size()
        << " tokens in " << SumOf(ended.prefill_seconds) << " s\n"
        << "decode: " << ended.decode_seconds.size() << " tokens in " << SumOf(ended.decode_seconds)
        << " s\n";
    return;
  }
  const std::string logits = arguments.logits.empty() ? "null" : Written(arguments.logits);
  const std::string words = text ? Written(*text) : "null";
  out << "{\"prompt_tokens\":" << arguments.tokens.size() << ",\"prompt_ids\":["
      << Joined(arguments.tokens, ",") << "],\"tokens\":[" << Joined(tokens, ",")
      << "],\"beside\":" << Listed(beside) << ",\"vectors\":" << Listed(vectors)
      << ",\"text\":" << words << ",\"prefill_seconds\":[" << Joined(ended.prefill_seconds, ",")
      << "],\"decode_seconds\":[" << Joined(ended.decode_seconds, ",") << "],\"vlen\":" << vlen
      << ",\"device\":" << device << ",\"logits_file\":" << logits << "}\n";
}

}  // namespace rvv_runner
