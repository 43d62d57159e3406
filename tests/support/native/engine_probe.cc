// SPDX-License-Identifier: Apache-2.0
// Runs the engine by a plan. Arguments: a library's file, a folder of parameters, the plan in JSON:
// sequences, tokens, total, chunk, queue, lookup, files (a folder for prompts), kilobytes of it; requests: tokens, step (of its Submit), cancel (step),
// max_tokens, owner, pictures (files), stop, stops, temperature, seed, top_logprobs, throws. JSON to the standard output:
// answers (or "refused" and why), in the plan's order; the stats after each step; the threads that
// compute.
#include <tvm/ffi/function.h>
#include <unistd.h>

#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/prompt_files.h"
#include "input/errors.h"
#include "input/json.h"
#include "input/read_file.h"
#include "model/model.h"
#include "model/params.h"
#include "model/thread_pool.h"

using namespace rvv_runner;

namespace {

int64_t Number(const Json& table, const char* name, int64_t otherwise) {
  const Json* found = Find(table, name);
  return found == nullptr ? otherwise : IntegerOf(*found, name);
}

std::vector<int32_t> Ids(const Json& table, const char* name) {
  std::vector<int32_t> ids;
  if (const Json* found = Find(table, name)) {
    for (const Json& id : ListOf(*found, name)) {
      ids.push_back(static_cast<int32_t>(IntegerOf(id, name)));
    }
  }
  return ids;
}

struct Told {
  std::string refused;
  std::vector<int32_t> tokens;
  std::string logprobs;
  Ended ended;
  int64_t finished = 0;  // times
  uint64_t id = 0;
};

Request RequestOf(const Json& about, const std::optional<Preparation>& how, Told* told) {
  Request request{Ids(about, "tokens"), {}, Ids(about, "stop"), {}, {}, {}};
  if (const Json* files = Find(about, "pictures")) {
    std::vector<std::shared_ptr<const PreparedPicture>> pictures;
    for (const Json& file : *files) {
      const Picture picture = DecodePicture(ReadFile(file.get<std::string>()));
      pictures.push_back(std::make_shared<const PreparedPicture>(Prepare(picture, how.value())));
    }
    request.pictures = PlacePictures(pictures, how.value(), &request.tokens);
  }
  request.sampling.max_tokens = Number(about, "max_tokens", 0);
  request.owner = static_cast<size_t>(Number(about, "owner", 0));
  request.sampling.temperature = static_cast<double>(Number(about, "temperature", 0));
  request.sampling.seed = static_cast<uint64_t>(Number(about, "seed", 1));
  request.sampling.top_logprobs = Number(about, "top_logprobs", -1);
  const bool throws = Number(about, "throws", 0) > 0;
  request.on_piece = [told, throws](const Piece& piece) {
    if (throws) throw std::runtime_error("the listener broke");
    told->tokens.insert(told->tokens.end(), piece.tokens.begin(), piece.tokens.end());
    for (const TokenLogprob& each : piece.logprobs) {
      told->logprobs += (told->logprobs.empty() ? "" : ",") + std::to_string(each.logprob);
    }
  };
  request.on_finish = [told](const Ended& ended) {
    told->ended = ended;
    ++told->finished;
  };
  return request;
}

void Print(const Told& told) {
  std::cout << "{\"refused\":" << Written(told.refused) << ",\"finished\":" << told.finished
            << ",\"finish\":" << static_cast<int>(told.ended.finish)
            << ",\"error\":" << Written(told.ended.error)
            << ",\"cached\":" << told.ended.cached_tokens
            << ",\"answered\":" << told.ended.answer_tokens
            << ",\"prefills\":" << told.ended.prefill_seconds.size() << ",\"logprobs\":["
            << told.logprobs << "],\"tokens\":[";
  for (size_t i = 0; i < told.tokens.size(); ++i) std::cout << (i ? "," : "") << told.tokens[i];
  std::cout << "]}";
}

void Print(const EngineStats& stats) {
  std::cout << "{\"running\":" << stats.running << ",\"queued\":" << stats.queued
            << ",\"kept\":" << stats.kept << ",\"pages_running\":" << stats.pages_running
            << ",\"pages_used\":" << stats.pages_used << ",\"pages_total\":" << stats.pages_total
            << ",\"decode_steps\":" << stats.decode_steps << ",\"mixed\":" << stats.mixed_steps
            << ",\"guessed\":" << stats.guessed_tokens << ",\"right\":" << stats.right_tokens
            << ",\"answer\":" << stats.answer_tokens << ",\"prompt\":" << stats.prompt_tokens
            << ",\"cached\":" << stats.cached_tokens << ",\"refused\":" << stats.refused
            << ",\"bytes\":" << stats.cache_bytes << "}";
}

int Run(char** argv) {
  const Json plan = ParseJson(argv[3], "plan");
  const Library library(argv[1], 0);
  const auto wanted = WantedParams(library.metadata());
  const auto nodes = static_cast<size_t>(Number(plan, "nodes", 1));
  const auto params = LoadParams(argv[2], library, true, "", nodes);
  const EngineLimits limits{
      Number(plan, "sequences", 1),     Number(plan, "tokens", 64),
      Number(plan, "chunk", 32),        Number(plan, "queue", 64),
      Number(plan, "adaptive", 0) != 0, Number(plan, "lookup", 0) ? Lookup::kAlways : Lookup::kOff};
  CacheLimits room = Model::RoomFor(limits.sequences, limits.tokens, limits.chunk);
  room.tokens = Number(plan, "total", room.tokens);
  Model model(library, params, room, {});
  std::unique_ptr<PromptFiles> files;
  if (const Json* folder = Find(TableOf(plan, "plan"), "files")) {
    files = std::make_unique<PromptFiles>(TextOf(*folder, "files"), "model",
                                          Number(plan, "kilobytes", 1 << 20) << 10,
                                          [](size_t owner) { return std::to_string(owner); });
  }
  Engine engine(&model, nullptr, VocabularySize(wanted, params).value(), limits, files.get());
  const Json& requests = ListOf(Field(plan, "requests", "plan"), "requests");
  std::vector<Told> told(requests.size());
  const int64_t least = Number(plan, "steps", 0);
  std::string comma;
  std::cout << "{\"steps\":[";
  for (int64_t step = 0;; ++step) {
    for (size_t i = 0; i < requests.size(); ++i) {
      if (Number(requests[i], "step", 0) == step) {
        try {
          told[i].id = engine.Submit(RequestOf(requests[i], PreparationOf(library), &told[i]));
        } catch (const std::exception& error) {
          told[i].refused = error.what();
        }
      }
      if (Number(requests[i], "cancel", -1) == step) engine.Cancel(told[i].id);
    }
    const bool busy = engine.Step();
    std::cout << comma;
    Print(engine.Stats());
    comma = ",";
    if (!busy && step >= least) break;
  }
  while (engine.Store()) {
  }
  std::cout << "],\"answers\":[";
  for (size_t i = 0; i < told.size(); ++i) {
    std::cout << (i ? "," : "");
    Print(told[i]);
  }
  std::mutex printing;
  std::cout << "],\"shares\":[null";
  ForEachShare(1001, [&printing](size_t begin, size_t end) {
    const std::lock_guard<std::mutex> lock(printing);
    std::cout << ",[" << begin << "," << end << "," << gettid() << "]";
  });
  const auto threads = tvm::ffi::Function::GetGlobalRequired("runtime.NumThreads");
  std::cout << "],\"threads\":" << threads().cast<int64_t>() << "}\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return argc == 4 ? Run(argv) : 2;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
