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

// Of a count that only grows.
Metric Total(const char* name, const char* help, auto value) {
  return {name, "counter", help, static_cast<double>(value)};
}

Metric Gauge(const char* name, const char* help, auto value) {
  return {name, "gauge", help, static_cast<double>(value)};
}

// What an engine counts.
std::vector<Metric> MetricsOf(const EngineStats& of) {
  return {
      Total("mlc_rvv_prompt_tokens_total", "Prompt tokens that were computed.", of.prompt_tokens),
      Total("mlc_rvv_cached_tokens_total", "Prompt tokens found in the KV cache.",
            of.cached_tokens),
      Total("mlc_rvv_answer_tokens_total", "Tokens of answers.", of.answer_tokens),
      Total("mlc_rvv_answers_total", "Answers that have ended.", of.requests),
      Total("mlc_rvv_answers_cancelled_total", "Answers that were cancelled.", of.cancelled),
      Total("mlc_rvv_answers_failed_total", "Answers that failed.", of.failed),
      Total("mlc_rvv_answers_refused_total", "Answers refused, the queue being full.", of.refused),
      Total("mlc_rvv_prefill_seconds_total", "Time in prefill calls.", of.prefill_seconds),
      Total("mlc_rvv_decode_seconds_total", "Time in decode calls.", of.decode_seconds),
      Total("mlc_rvv_decode_steps_total", "Batched decode calls.", of.decode_steps),
      Total("mlc_rvv_mixed_steps_total", "Of these, calls that also read a part of a prompt.",
            of.mixed_steps),
      Total("mlc_rvv_guessed_tokens_total", "Tokens guessed by prompt lookup.", of.guessed_tokens),
      Total("mlc_rvv_right_tokens_total", "Guessed tokens that were chosen.", of.right_tokens),
      Gauge("mlc_rvv_queued", "Answers that wait.", of.queued),
      Gauge("mlc_rvv_running", "Answers that are computed.", of.running),
      Gauge("mlc_rvv_kept_sequences", "Finished sequences whose cache is kept.", of.kept),
      Gauge("mlc_rvv_pages_used", "Pages of the KV cache in use.", of.pages_used),
      Gauge("mlc_rvv_pages", "Pages of the KV cache.", of.pages_total),
      Gauge("mlc_rvv_cache_bytes", "Bytes of the KV cache.", of.cache_bytes),
  };
}

}  // namespace

void Metrics::Count(const std::string& route, int status) {
  const std::lock_guard guard(mutex_);
  ++answered_[{route, status}];
}

std::string Metrics::Text(const EngineStats* stats, size_t bodies) const {
  std::vector<Metric> metrics = stats ? MetricsOf(*stats) : std::vector<Metric>();
  metrics.push_back(
      Gauge("mlc_rvv_body_bytes", "Bytes of request bodies that are being read.", bodies));
  metrics.push_back(Gauge("process_resident_memory_bytes",
                          "Bytes of the process that are in memory.", ResidentBytes()));
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
