// SPDX-License-Identifier: Apache-2.0
#include "server/metrics.h"

#include <sstream>
#include <vector>

#include "input/resident_bytes.h"

namespace rvv_runner {
namespace {

struct Metric {
  const char* name;
  const char* type;
  const char* help;
  double value;
};

void Head(std::ostream& out, const char* name, const char* type, const char* help) {
  out << "# HELP " << name << " " << help << "\n# TYPE " << name << " " << type << "\n";
}

double Number(int64_t value) { return static_cast<double>(value); }

// What an engine counts.
std::vector<Metric> MetricsOf(const EngineStats& stats) {
  return {
      {"mlc_rvv_prompt_tokens_total", "counter", "Prompt tokens that were computed.",
       Number(stats.prompt_tokens)},
      {"mlc_rvv_cached_tokens_total", "counter", "Prompt tokens found in the KV cache.",
       Number(stats.cached_tokens)},
      {"mlc_rvv_answer_tokens_total", "counter", "Tokens of answers.", Number(stats.answer_tokens)},
      {"mlc_rvv_answers_total", "counter", "Answers that have ended.", Number(stats.requests)},
      {"mlc_rvv_answers_cancelled_total", "counter", "Answers that were cancelled.",
       Number(stats.cancelled)},
      {"mlc_rvv_answers_failed_total", "counter", "Answers that failed.", Number(stats.failed)},
      {"mlc_rvv_answers_refused_total", "counter", "Answers refused, the queue being full.",
       Number(stats.refused)},
      {"mlc_rvv_prefill_seconds_total", "counter", "Time in prefill calls.", stats.prefill_seconds},
      {"mlc_rvv_decode_seconds_total", "counter", "Time in decode calls.", stats.decode_seconds},
      {"mlc_rvv_decode_steps_total", "counter", "Batched decode calls.",
       Number(stats.decode_steps)},
      {"mlc_rvv_mixed_steps_total", "counter", "Of these, calls that also read a part of a prompt.",
       Number(stats.mixed_steps)},
      {"mlc_rvv_guessed_tokens_total", "counter", "Tokens guessed by prompt lookup.",
       Number(stats.guessed_tokens)},
      {"mlc_rvv_right_tokens_total", "counter", "Guessed tokens that were chosen.",
       Number(stats.right_tokens)},
      {"mlc_rvv_queued", "gauge", "Answers that wait.", Number(stats.queued)},
      {"mlc_rvv_running", "gauge", "Answers that are computed.", Number(stats.running)},
      {"mlc_rvv_kept_sequences", "gauge", "Finished sequences whose cache is kept.",
       Number(stats.kept)},
      {"mlc_rvv_pages_used", "gauge", "Pages of the KV cache in use.", Number(stats.pages_used)},
      {"mlc_rvv_pages", "gauge", "Pages of the KV cache.", Number(stats.pages_total)},
      {"mlc_rvv_cache_bytes", "gauge", "Bytes of the KV cache.", Number(stats.cache_bytes)},
  };
}

}  // namespace

void Metrics::Count(const std::string& route, int status) {
  const std::lock_guard guard(mutex_);
  ++answered_[{route, status}];
}

std::string Metrics::Text(const EngineStats* stats, size_t bodies) const {
  std::vector<Metric> metrics = stats ? MetricsOf(*stats) : std::vector<Metric>();
  metrics.insert(metrics.end(),
                 {
                     {"mlc_rvv_body_bytes", "gauge", "Bytes of request bodies that are being read.",
                      Number(static_cast<int64_t>(bodies))},
                     {"process_resident_memory_bytes", "gauge",
                      "Bytes of the process that are in memory.", Number(ResidentBytes())},
                 });
  std::ostringstream out;
  out.precision(15);
  for (const Metric& metric : metrics) {
    Head(out, metric.name, metric.type, metric.help);
    out << metric.name << " " << metric.value << "\n";
  }
  Head(out, "mlc_rvv_http_requests_total", "counter", "HTTP requests by path and status.");
  const std::lock_guard guard(mutex_);
  for (const auto& [key, count] : answered_) {
    out << "mlc_rvv_http_requests_total{path=\"" << key.first << "\",code=\"" << key.second
        << "\"} " << count << "\n";
  }
  return out.str();
}

}  // namespace rvv_runner
