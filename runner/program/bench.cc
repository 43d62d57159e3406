// SPDX-License-Identifier: Apache-2.0
#include "program/bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <optional>
#include <thread>
#include <utility>

#include "input/errors.h"
#include "input/json.h"
#include "model/cpus.h"
#include "model/huge_pages.h"
#include "model/model.h"
#include "program/arguments.h"
#include "program/limits.h"
#include "program/threads.h"
#include "program/weights.h"

namespace rvv_runner {
namespace {

constexpr char kBenchUsage[] =
    "usage: runner bench --params DIR [options]\n"
    "Measures the speed of the model on this machine in tokens a second: reading a prompt (pp) "
    "and\n"
    "decoding token by token (tg), as llama-bench does. The tokens are arbitrary.\n\n"
    "  --params, --lib, --prefill-chunk, --check-vlen, --vocab: see runner --help\n"
    "  --prompt-tokens N    tokens of the prompt; 0: measure no prompt (512)\n"
    "  --new-tokens N       tokens to decode; 0: measure no decoding (128)\n"
    "  --threads N,N,...    numbers of threads (1, 2, 4, ... and all physical cores)\n"
    "  --repeat N           measurements of each row (3)\n"
    "  --board NAME         compare with what MANIFEST.json predicts for this board, such as k1\n"
    "                       (the one that the device tree names)\n"
    "  --json               print the result as JSON\n"
    "  --help               this text\n";

constexpr int64_t kMostTokens = int64_t{1} << 20;

struct BenchArguments {
  std::optional<int64_t> prompt;  // tokens; else 512, or what fits
  std::optional<int64_t> answer;  // tokens; else 128, or what fits
  int64_t repeat = 3;
  std::vector<int64_t> threads;
  std::string board;
  std::vector<std::string> rest;  // options of the model
};

struct Row {
  int64_t threads;
  std::string test;  // as llama-bench writes it: pp512, tg128
  int64_t tokens;
  std::vector<double> seconds;
  std::optional<double> predicted = {};  // tokens a second
  std::optional<double> error = {};      // of predictions, relative, in the median

  double Mean() const {
    double sum = 0.0;
    for (const double each : seconds) sum += tokens / each;
    return sum / static_cast<double>(seconds.size());
  }

  // Standard deviation of the sample.
  double Deviation() const {
    const double mean = Mean();
    double sum = 0.0;
    for (const double each : seconds) sum += std::pow(tokens / each - mean, 2);
    return seconds.size() < 2 ? 0.0 : std::sqrt(sum / static_cast<double>(seconds.size() - 1));
  }
};

BenchArguments Parse(const std::vector<std::string>& words) {
  BenchArguments a;
  OptionTable options;
  options.values = {{"--prompt-tokens", TakeInteger(0, kMostTokens, &a.prompt)},
                    {"--new-tokens", TakeInteger(0, kMostTokens, &a.answer)},
                    {"--repeat", TakeInteger(1, 1000, &a.repeat)},
                    {"--board", TakeText(&a.board)},
                    {"--threads", [&a](const std::string& option, const std::string& v) {
                       a.threads = ParseIntegers(option, v, 1, kMostThreads);
                     }}};
  a.rest = options.Read(words);
  if (a.prompt == 0 && a.answer == 0) {
    throw InputError("--prompt-tokens 0 and --new-tokens 0 leave nothing to measure");
  }
  return a;
}

// 1, 2, 4, ... and all physical cores.
std::vector<int64_t> Doubling(int64_t cores) {
  std::vector<int64_t> counts;
  for (int64_t n = 1; n < cores; n *= 2) counts.push_back(n);
  counts.push_back(cores);
  return counts;
}

// The number of tokens to measure: as given, or else `usual` or what fits.
int64_t Tokens(const std::string& option, std::optional<int64_t> given, int64_t usual,
               int64_t context) {
  const int64_t tokens = given.value_or(std::min(usual, context));
  if (tokens <= context) return tokens;
  throw InputError(option + " " + std::to_string(tokens) + " is more than the model's context of " +
                   std::to_string(context) + " tokens");
}

// Tokens that differ, so that the rows of the embedding are not all in a cache.
std::vector<int32_t> Differing(int64_t count, int64_t vocabulary) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  uint64_t state = 1;
  for (int32_t& token : tokens) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    token = static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocabulary));
  }
  return tokens;
}

void ReadPrompt(Model* model, const std::vector<int32_t>& tokens, int64_t chunk) {
  if (model->encodes()) {
    model->SumsOfStates({{0}, {std::ssize(tokens)}, tokens});
    return;
  }
  for (size_t at = 0; at < tokens.size(); at += static_cast<size_t>(chunk)) {
    const size_t end = std::min(tokens.size(), at + static_cast<size_t>(chunk));
    model->Prefill(0, {tokens.begin() + at, tokens.begin() + end});
  }
}

void DecodeEach(Model* model, const std::vector<int32_t>& tokens) {
  for (const int32_t token : tokens) model->Decode({0}, {token});
}

// Seconds of `work` on an empty sequence.
double Timed(Model* model, const std::function<void()>& work) {
  model->Add(0);
  const auto start = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  model->Remove(0);
  return spent.count();
}

// Calls `work` on a new thread, and rethrows what it throws. TVM's runtime has a pool of threads
// for each thread that starts computation, with the number of threads at its first use.
void OnNewThread(const std::function<void()>& work) {
  std::exception_ptr failure;
  std::thread([&] {
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
}

// The core's name as Linux gives it, such as "spacemit,x60"; empty if it gives none.
std::string CoreName() {
  std::ifstream stream("/proc/cpuinfo");
  for (std::string line; std::getline(stream, line);) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    if (line.starts_with("uarch") || line.starts_with("model name")) return line.substr(colon + 2);
  }
  return "";
}

// The names of this machine in its device tree, such as "spacemit,k1-x"; the most special first.
std::vector<std::string> DeviceTreeNames() {
  std::ifstream stream("/proc/device-tree/compatible");
  std::vector<std::string> names;
  for (std::string name; std::getline(stream, name, '\0');) names.push_back(name);
  return names;
}

// The predictions for a board that computes with such registers: the one with this name or, if it is
// empty, this machine. Null if there are none. Throws InputError if they lack a named board.
Json PredictionsFor(const Weights& weights, const std::string& board, int64_t vlen) {
  const std::string where = "MANIFEST.json, predictions";
  std::string known;
  const std::vector<std::string> names = DeviceTreeNames();
  for (const Json& one : weights.predictions.is_null() ? Json::array() : weights.predictions) {
    const std::string& name = TextOf(Field(one, "board", where), where);
    known += (known.empty() ? "" : ", ") + name;
    bool here = false;
    for (const Json& start : ListOf(Field(one, "compatible", where), where)) {
      const std::string& first = TextOf(start, where);
      here |= std::ranges::any_of(names, [&](const auto& full) { return full.starts_with(first); });
    }
    here = here && IntegerOf(Field(one, "vlen", where), where) == vlen;
    if (board.empty() ? here : name == board) return one;
  }
  if (!board.empty()) {
    throw InputError("--board " + board + ": MANIFEST.json has no predictions for it" +
                     (known.empty() ? "" : ", but for " + known));
  }
  return nullptr;
}

// Sets what is predicted for a row.
void Predict(const Json& predictions, Row* row) {
  if (predictions.is_null()) return;
  const std::string where = "MANIFEST.json, predictions";
  for (const Json& one : ListOf(Field(predictions, "rows", where), where)) {
    if (Field(one, "test", where) != row->test) continue;
    if (IntegerOf(Field(one, "threads", where), where) != row->threads) continue;
    row->predicted = RealOf(Field(one, "tokens_per_second", where), where);
    if (!Field(one, "error", where).is_null())
      row->error = RealOf(Field(one, "error", where), where);
  }
}

int64_t BytesOf(const Weights& weights) {
  int64_t bytes = 0;
  for (const auto& param : weights.params) {
    const auto tensor = param.cast<tvm::runtime::Tensor>();
    bytes += tensor.numel() * tensor->dtype.bits / 8;
  }
  return bytes;
}

struct About {
  std::string model;
  std::string core;
  int64_t vlen;
  int64_t bytes;       // of the weights
  int64_t huge_bytes;  // of the process, in huge pages
  std::string verdict;
  std::string board;  // whose speed is predicted; may be empty
};

std::string Fixed(double value) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.2f", value);
  return text;
}

void PrintHead(const About& about) {
  std::cout << "model " << about.model << ", weights " << Fixed(about.bytes / 1048576.0) << " MiB ("
            << Fixed(about.huge_bytes / 1048576.0) << " MiB in huge pages)";
  if (!about.core.empty()) std::cout << ", core " << about.core;
  if (about.vlen > 0) std::cout << ", compiled for vector registers of " << about.vlen << " bits";
  if (!about.verdict.empty()) std::cout << ", its answer when built: " << about.verdict;
  const bool predicted = !about.board.empty();
  if (predicted) std::cout << "; predicted for " << about.board;
  std::cout << "\n\n| threads | test | tokens/s |" << (predicted ? " predicted |" : "")
            << "\n| ---: | ---: | ---: |" << (predicted ? " ---: |" : "") << "\n"
            << std::flush;
}

// A prediction with its error: "12.90 ± 0.76".
std::string Predicted(const Row& row) {
  if (!row.predicted) return "";
  return Fixed(*row.predicted) + (row.error ? " ± " + Fixed(*row.error * *row.predicted) : "");
}

void PrintRow(const About& about, const Row& row) {
  std::cout << "| " << row.threads << " | " << row.test << " | " << Fixed(row.Mean()) << " ± "
            << Fixed(row.Deviation()) << " |"
            << (about.board.empty() ? "" : " " + Predicted(row) + " |") << "\n"
            << std::flush;
}

void PrintJson(const About& about, const std::vector<Row>& rows) {
  Json result = {{"model", about.model},
                 {"core", about.core},
                 {"vlen", about.vlen},
                 {"weights_bytes", about.bytes},
                 {"huge_page_bytes", about.huge_bytes},
                 {"verdict", about.verdict},
                 {"board", about.board},
                 {"rows", Json::array()}};
  for (const Row& row : rows) {
    result["rows"].push_back({{"threads", row.threads},
                              {"test", row.test},
                              {"tokens", row.tokens},
                              {"seconds", row.seconds},
                              {"tokens_per_second", row.Mean()},
                              {"deviation", row.Deviation()},
                              {"predicted", row.predicted ? Json(*row.predicted) : Json()}});
  }
  std::cout << Written(result, 2) << "\n";
}

}  // namespace

int Bench(const std::vector<std::string>& words) {
  if (std::count(words.begin(), words.end(), "--help")) {
    std::cout << kBenchUsage;
    return 0;
  }
  const BenchArguments own = Parse(words);
  Arguments arguments = ParseModelArguments(own.rest);
  RefuseAnswerOptions(arguments, "bench");
  const Library library(arguments.library, arguments.check_vlen);
  SetThreads(0);
  const int64_t context = MostOf(library, arguments).max_seq;
  const int64_t prompted = Tokens("--prompt-tokens", own.prompt, 512, context);
  if (library.encodes() && own.answer.value_or(0) > 0) {
    throw InputError("--new-tokens: this model gives vectors of texts, and decodes nothing");
  }
  const int64_t decoded = library.encodes() ? 0 : Tokens("--new-tokens", own.answer, 128, context);
  arguments.max_seq = std::max(prompted, decoded);
  const Limits limits = MostOf(library, arguments);
  const Weights weights = ReadWeights(library, arguments, nullptr);
  Model model(library, weights.params, Model::RoomFor(1, limits.max_seq, limits.chunk), {});
  const Json predictions = PredictionsFor(weights, own.board, library.vlen());
  const About about = {ModelName(arguments.params),
                       CoreName(),
                       library.vlen(),
                       BytesOf(weights),
                       HugePageBytes(),
                       weights.verdict,
                       predictions.is_null() ? ""
                                             : TextOf(Field(predictions, "name", "MANIFEST.json"),
                                                      "MANIFEST.json, name")};
  if (!arguments.json) PrintHead(about);
  const auto prompt = Differing(prompted, weights.vocabulary);
  const auto answer = Differing(decoded, weights.vocabulary);
  struct Test {
    const char* name;
    int64_t tokens;
    std::function<void()> work;
  };
  const Test tests[] = {{"pp", prompted, [&] { ReadPrompt(&model, prompt, limits.chunk); }},
                        {"tg", decoded, [&] { DecodeEach(&model, answer); }}};
  std::vector<Row> rows;
  for (const int64_t threads : own.threads.empty() ? Doubling(PhysicalCores()) : own.threads) {
    SetThreads(threads);
    OnNewThread([&] {
      // The first call on a thread starts the pool and touches the weights.
      Timed(&model, [&] { ReadPrompt(&model, {0}, 1); });
      for (const auto& [name, tokens, work] : tests) {
        if (tokens == 0) continue;
        Row row = {threads, name + std::to_string(tokens), tokens, {}};
        for (int64_t i = 0; i < own.repeat; ++i) row.seconds.push_back(Timed(&model, work));
        Predict(predictions, &row);
        if (!arguments.json) PrintRow(about, row);
        rows.push_back(std::move(row));
      }
    });
  }
  if (arguments.json) PrintJson(about, rows);
  return std::cout ? 0 : 1;
}

}  // namespace rvv_runner
