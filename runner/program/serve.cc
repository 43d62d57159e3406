// SPDX-License-Identifier: Apache-2.0
#include "program/serve.h"

#include <algorithm>
#include <csignal>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "api/description.h"
#include "engine/defaults.h"
#include "engine/engine.h"
#include "engine/prompt_files.h"
#include "grammar/compiler.h"
#include "input/available_bytes.h"
#include "input/errors.h"
#include "input/heap.h"
#include "input/json.h"
#include "input/log.h"
#include "input/read_file.h"
#include "model/model.h"
#include "program/arguments.h"
#include "program/limits.h"
#include "program/threads.h"
#include "program/weights.h"
#include "server/engine_thread.h"
#include "server/listening.h"
#include "server/model_servers.h"

namespace rvv_runner {

const char kServeUsage[] =
    "usage: runner serve --params DIR --tokenizer FILE [options]\n"
    "Serves the model over HTTP with OpenAI's protocol, and a chat page at /.\n\n"
    "  --params, --tokenizer, --lib, --max-seq, --prefill-chunk, --threads, --check-vlen, "
    "--vocab,\n"
    "  --map-params, --no-params-check:\n"
    "                       see runner --help\n"
    "  --host ADDRESS       address to listen at (127.0.0.1: this machine only; 0.0.0.0: all\n"
    "                       networks, needs --api-key-file)\n"
    "  --port N             port to listen at; 0: any free port (8000)\n"
    "  --api-key-file FILE  file of keys, one a line; clients must send one of them (none)\n"
    "  --alias-file FILE    file of other names of the model, one a line (none)\n"
    "                       SIGHUP reads both files again; running answers go on\n"
    "  --cors ORIGIN        allow requests from pages of this origin, such as https://example.org\n"
    "                       (none)\n"
    "  --parallel N         most answers computed at the same time (4)\n"
    "  --queue N            most answers that wait; further requests get status 429 (64)\n"
    "  --cache-dir DIR      folder in which the keys and values of prompts survive a restart\n"
    "                       (none); they hold the prompts: keep the folder private\n"
    "  --cache-size MIB     most MiB of its files (1024)\n"
    "  --cache-memory MIB   most MiB of the KV cache (four fifths of the available memory)\n"
    "  --models DIR         serve all models whose folders are in DIR, instead of --params and\n"
    "                       --tokenizer; a request names one of them. Each is loaded when it is\n"
    "                       first asked for, and unloaded when another one needs its memory\n"
    "  --models-memory MIB  with --models: most MiB of parameters and caches of the loaded models\n"
    "                       (four fifths of the available memory); --cache-memory is then that of\n"
    "                       each model (512)\n"
    "  --no-prompt-lookup   do not guess tokens that the prompt or the answer has had before; "
    "else\n"
    "                       they are guessed, and verified together, while that saves time\n"
    "  --temperature and the other sampling options: defaults for requests that do not set them\n"
    "  --name NAME          name of the model (the name of the folder that holds --params)\n"
    "  --alias NAME         another name of the model, for clients that ask for it (none)\n"
    "  --strict             refuse unknown fields of requests, instead of listing them in the\n"
    "                       header X-Ignored-Fields, and keywords of schemas that grammars cannot\n"
    "                       express, instead of listing them in X-Checked-Fields\n"
    "  --log-level LEVEL    error, warn, info (and a line for each request) or debug (and why a\n"
    "                       request is refused) (info)\n"
    "  --describe           print the API field by field: what works, differs, is refused\n"
    "  --openapi            print the API as an OpenAPI document\n"
    "  --help               this text\n";

namespace {

constexpr int64_t kMostParallel = 64;
constexpr int64_t kMostQueued = 1024;
constexpr size_t kSpareConnections = 32;  // for the page, /health and /metrics
constexpr size_t kModelsConnections = 256;
constexpr int64_t kModelCache = 512;  // MiB
constexpr size_t kLongestTexts = size_t{64} << 10;

struct ServeArguments {
  ServerOptions server;
  int64_t parallel = 4;
  int64_t queue = 64;
  std::string key_file;
  std::string alias_file;
  std::string cache_folder;
  int64_t cache_mebibytes = 1024;
  int64_t kv_mebibytes = 0;  // 0: not given
  std::string models;
  int64_t models_mebibytes = 0;
  std::vector<std::string> passed;  // options for the servers of --models
  std::string log_level = "info";
  std::string name;
  std::string alias;
  bool strict = false;
  bool no_lookup = false;
  std::vector<std::string> rest;  // options of the model
};

// Checks for an origin as browsers write it (RFC 6454), or "*".
void CheckOrigin(const std::string& origin) {
  std::string_view host = origin;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (host.starts_with(scheme)) host.remove_prefix(scheme.size());
  }
  const auto plain = [](char c) { return c > ' ' && c < 127 && c != '/' && c != ',' && c != '*'; };
  const bool whole = host.size() < origin.size() && std::all_of(host.begin(), host.end(), plain);
  if (origin.empty() || origin == "*" || (whole && !host.empty())) return;
  throw InputError("--cors: '" + origin + "' is not an origin such as https://example.org " +
                   "(scheme, host, optional port, no path), nor *, which allows every origin");
}

ServeArguments Parse(const std::vector<std::string>& words) {
  ServeArguments a;
  int64_t port = a.server.port;
  // An empty text is often that of a shell variable that is not set.
  const auto text = [](std::string* target) -> OptionTable::Take {
    return [=](const std::string& option, const std::string& value) {
      if (value.empty()) throw InputError(option + " needs a value");
      *target = value;
    };
  };
  OptionTable options;
  options.flags = {{"--no-prompt-lookup", &a.no_lookup}, {"--strict", &a.strict}};
  options.values = {{"--host", text(&a.server.host)},
                    {"--cors", TakeText(&a.server.cors)},
                    {"--api-key-file", text(&a.key_file)},
                    {"--alias", text(&a.alias)},
                    {"--alias-file", text(&a.alias_file)},
                    {"--log-level", text(&a.log_level)},
                    {"--name", text(&a.name)},
                    {"--cache-dir", text(&a.cache_folder)},
                    {"--models", text(&a.models)},
                    {"--port", TakeInteger(0, 65535, &port)},
                    {"--parallel", TakeInteger(1, kMostParallel, &a.parallel)},
                    {"--queue", TakeInteger(1, kMostQueued, &a.queue)},
                    {"--cache-size", TakeInteger(1, 1 << 24, &a.cache_mebibytes)},
                    {"--cache-memory", TakeInteger(1, 1 << 24, &a.kv_mebibytes)},
                    {"--models-memory", TakeInteger(1, 1 << 24, &a.models_mebibytes)}};
  a.rest = options.Read(words);
  // What the servers of --models do not get: they are behind this one, and have their own files.
  const std::set<std::string> own = {"--host",          "--port",         "--cors", "--models",
                                     "--models-memory", "--cache-memory", "--name", "--cache-dir",
                                     "--params",        "--tokenizer",    "--lib",  "--log-level"};
  for (size_t i = 0; i < words.size(); ++i) {
    const bool passes = !own.contains(words[i]) && (i == 0 || !own.contains(words[i - 1]));
    if (passes) a.passed.push_back(words[i]);
  }
  SetLogLevel(ParseLogLevel(a.log_level));
  a.server.port = static_cast<int>(port);
  CheckOrigin(a.server.cors);
  if (a.name.find('/') != std::string::npos) {
    throw InputError("--name: '" + a.name +
                     "' must not contain a slash: it becomes a part of /v1/models/NAME");
  }
  if (!a.models.empty() && !(a.name.empty() && a.alias.empty() && a.alias_file.empty())) {
    throw InputError("--models: the models have the names of their folders; leave out --name, " +
                     std::string("--alias and --alias-file"));
  }
  if (a.models.empty() && a.models_mebibytes > 0) {
    throw InputError("--models-memory needs --models DIR");
  }
  // Each model has parameters of its own; the other options are checked before one is loaded.
  if (!a.models.empty()) a.rest.insert(a.rest.begin(), {"--params", a.models});
  return a;
}

// The texts of an option's file, one a line. `what`: the name of one of them.
std::vector<std::string> ReadTexts(const std::string& option, const std::string& file,
                                   const std::string& what) {
  std::istringstream lines(ReadFile(file, kLongestTexts));
  std::vector<std::string> texts;
  for (std::string text; std::getline(lines, text);) {
    if (text.ends_with('\r')) text.pop_back();
    const bool plain =
        std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127; });
    if (text.empty() || !plain) {
      throw InputError(option + ": line " + std::to_string(texts.size() + 1) + " of " + file +
                       " must be a " + what + ": ASCII characters without blanks");
    }
    texts.push_back(text);
  }
  if (texts.empty()) throw InputError(option + ": " + file + " has no " + what);
  return texts;
}

std::vector<std::string> ReadKeys(const ServeArguments& own) {
  if (own.key_file.empty()) return {};
  return ReadTexts("--api-key-file", own.key_file, "key");
}

std::vector<std::string> ReadAliases(const ServeArguments& own) {
  std::vector<std::string> names;
  if (!own.alias_file.empty()) names = ReadTexts("--alias-file", own.alias_file, "name");
  if (!own.alias.empty()) names.push_back(own.alias);
  return names;
}

// Reads the files again. Changes nothing if one of them is wrong.
void Reload(const ServeArguments& own, Accepted* keys, Accepted* aliases) {
  const auto now = ReadKeys(own);
  const auto names = ReadAliases(own);
  keys->Replace(now);
  aliases->Replace(names);
  Log(LogLevel::kInfo, "SIGHUP: read " + std::to_string(now.size()) + " keys and " +
                           std::to_string(names.size()) + " other names of the model");
}

std::string Mebibytes(int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

// Four fifths of the available memory: the rest is for what a call computes, bodies and the system.
int64_t MostMemory() { return AvailableBytes() / 10 * 8; }

// The memory for the KV cache and pictures; half is left for the pages of mapped parameters.
int64_t CacheMemory(const Arguments& arguments) {
  return arguments.map_folder.empty() ? MostMemory() : MostMemory() / 2;
}

// The most bytes of pictures: one is decoded at a time, those of waiting answers are small, and running
// answers have states of those that they read next.
int64_t PictureBytes(const std::optional<Preparation>& how, const EngineLimits& limits) {
  if (!how) return 0;
  const int64_t each = std::min(kMostPictures, limits.tokens / how->tokens);
  const int64_t prepared = (limits.sequences + limits.queue) * each * 3 * how->size * how->size;
  const int64_t next = std::min(each, limits.chunk / how->tokens + 2);
  return kMostDecoding + 3 * kMostPixels + prepared + limits.sequences * next * how->bytes;
}

// Room for --parallel of the longest answers, or for as many tokens as fit into the memory: then an
// answer may wait for the pages of others. Throws InputError if not even one answer fits into it.
CacheLimits RoomInMemory(const Library& library, const EngineLimits& limits, int64_t memory) {
  CacheLimits room = Model::RoomFor(limits.sequences, limits.tokens, limits.chunk);
  const int64_t one = Model::RoomFor(1, limits.tokens, limits.chunk).tokens;
  // Model refuses a single answer that is beyond the indices.
  room.tokens = std::clamp(Model::MostTokens(library, limits.sequences), one, room.tokens);
  const int64_t token = TokenBytes(library);
  if (memory == 0 || token == 0) return room;
  const int64_t states = StateBytes(library) * Model::StateSlots(limits.sequences);
  const int64_t most = std::max<int64_t>(0, memory - states) / token;
  if (most < one) {
    throw InputError("not enough memory: the KV cache of one answer of " +
                     std::to_string(limits.tokens) + " tokens takes " + Mebibytes(one * token) +
                     (states > 0 ? " and recurrent states " + Mebibytes(states) : "") +
                     ", but there are " + Mebibytes(memory) + " for it; use --parallel 1 and " +
                     "--max-seq " + std::to_string(std::max<int64_t>(1, most)) + " or less");
  }
  room.tokens = std::min(room.tokens, most / Model::kPageTokens * Model::kPageTokens);
  return room;
}

// What the server says of its room.
std::string RoomOf(const Model& model, const CacheLimits& room, const EngineLimits& limits,
                   int64_t states) {
  const std::string each = " of up to " + std::to_string(limits.tokens) + " tokens (--max-seq)";
  const std::string most = std::to_string(limits.sequences);
  if (model.encodes()) return "vectors of texts" + each + ", " + most + " at once (--parallel)";
  return "a KV cache of " + Mebibytes(model.bytes()) +
         (states > 0 ? " and recurrent states of " + Mebibytes(states) : "") + " for " +
         std::to_string(room.tokens) + " tokens of " + most +
         " answers at once (--parallel), each" + each;
}

// The files of --cache-dir; null without the option, and for a model whose cache cannot be stored.
std::unique_ptr<PromptFiles> FilesOfPrompts(const ServeArguments& own, const ParamFiles& params,
                                            const Library& library, const Accepted& keys,
                                            const Model& model) {
  if (own.cache_folder.empty()) return nullptr;
  if (!model.tells_rows()) {
    Log(LogLevel::kWarn,
        "--cache-dir has no effect: this model has a sliding window or recurrent states");
    return nullptr;
  }
  auto files = std::make_unique<PromptFiles>(
      own.cache_folder, params.digest + Written(library.metadata()), own.cache_mebibytes << 20,
      [&keys](size_t owner) { return keys.Text(owner); });
  Log(LogLevel::kInfo, own.cache_folder + " has " + std::to_string(files->files()) + " blocks of " +
                           "prompts, " + Mebibytes(files->bytes()) + " of at most " +
                           Mebibytes(own.cache_mebibytes << 20));
  return files;
}

// Prints what an option asks for instead of serving. Returns false without such an option.
bool PrintInstead(const std::vector<std::string>& words) {
  const auto given = [&](const char* option) {
    return std::count(words.begin(), words.end(), option) > 0;
  };
  if (given("--help")) {
    std::cout << kServeUsage;
  } else if (given("--describe")) {
    std::cout << ApiPage();
  } else if (given("--openapi")) {
    std::cout << WrittenInOrder(OpenApi(), 2) << "\n";
  } else {
    return false;
  }
  return true;
}

}  // namespace

namespace {

// Serves the models in a folder, each by a process of its own.
int ServeModels(ServeArguments own) {
  own.server.keys = ReadKeys(own);
  own.server.connections = kModelsConnections;
  HttpServer server(own.server);
  server.Bind();
  StopSignals signals;
  const int64_t memory = own.models_mebibytes > 0 ? own.models_mebibytes << 20 : MostMemory();
  const int64_t cache = (own.kv_mebibytes > 0 ? own.kv_mebibytes : kModelCache) << 20;
  const auto options = [&](const StoredModel& model) {
    std::vector<std::string> words = own.passed;
    words.insert(words.end(), {"--log-level", own.log_level == "info" ? "warn" : own.log_level,
                               "--cache-memory", std::to_string(cache >> 20)});
    if (!own.cache_folder.empty()) {
      words.insert(words.end(), {"--cache-dir", own.cache_folder + "/" + model.name});
    }
    return words;
  };
  ModelServers models(ModelsIn(own.models), options, memory, cache);
  Accepted aliases;
  signals.OnReload([&] {
    Reload(own, &server.keys(), &aliases);
    models.Reload();
  });
  for (const StoredModel& model : models.models()) {
    Log(LogLevel::kInfo, "model " + model.name + ", " + Mebibytes(model.bytes));
  }
  Log(LogLevel::kInfo, Mebibytes(memory) + " for the loaded models (--models-memory), of each " +
                           Mebibytes(cache) + " for its cache (--cache-memory)");
  ServeUntilStopped(&server, &models, &signals, std::cout);
  return 0;
}

}  // namespace

int Serve(const std::vector<std::string>& words) {
  if (PrintInstead(words)) return 0;
  ReturnFreedMemory();
  ServeArguments own = Parse(words);
  const Arguments arguments = ParseModelArguments(own.rest);
  RefuseAnswerOptions(arguments, "serve");
  if (!own.models.empty()) return ServeModels(std::move(own));
  if (arguments.tokenizer.empty()) throw InputError("--tokenizer is missing: tokenizer.bin");
  own.server.keys = ReadKeys(own);
  Accepted aliases(ReadAliases(own));
  own.server.connections = static_cast<size_t>(own.parallel + own.queue) + kSpareConnections;
  // Bind before the model is read, which takes long, to report a port that is in use at once.
  HttpServer server(own.server);
  server.Bind();
  StopSignals signals;
  signals.OnReload([&] { Reload(own, &server.keys(), &aliases); });
  const Tokenizer tokenizer = ReadTokenizer(arguments.tokenizer);
  const Library library(arguments.library, arguments.check_vlen);
  SetThreads(arguments.threads);
  const Limits most = MostOf(library, arguments);
  const EngineLimits limits = {.sequences = own.parallel,
                               .tokens = most.max_seq,
                               .chunk = most.chunk,
                               .queue = own.queue,
                               .adaptive = arguments.prefill_chunk == 0,
                               .lookup = own.no_lookup ? Lookup::kOff : Lookup::kWhereItGains};
  Sampling defaults = DefaultSampling(arguments.params);
  const Weights weights = ReadWeights(library, arguments, &tokenizer);
  defaults = SamplingOf(arguments, defaults, weights.vocabulary);
  const auto picture = PreparationOf(library);
  const int64_t memory =
      std::max<int64_t>(1, CacheMemory(arguments) - PictureBytes(picture, limits));
  const CacheLimits room =
      RoomInMemory(library, limits, own.kv_mebibytes > 0 ? own.kv_mebibytes << 20 : memory);
  Model model(library, weights.params, room, arguments.region);
  const int64_t states = StateBytes(library) * Model::StateSlots(room.sequences);
  Log(LogLevel::kInfo, RoomOf(model, room, limits, states));
  if (picture) {
    Log(LogLevel::kInfo, "pictures of up to " + Mebibytes(PictureBytes(picture, limits)));
  }
  if (weights.verdict == "right") Log(LogLevel::kInfo, "when it was built, its answer was right");
  const ParamFiles files = FilesOf(arguments.params);
  const auto prompts = FilesOfPrompts(own, files, library, server.keys(), model);
  Engine engine(&model, &tokenizer, weights.vocabulary, limits, prompts.get());
  EngineThread thread(&engine);
  const std::string name = own.name.empty() ? ModelName(arguments.params) : own.name;
  GrammarCompiler grammars(tokenizer, weights.vocabulary);
  ServeUntilStopped(&server,
                    {name, &tokenizer, &thread, &grammars, defaults, limits.tokens, &aliases,
                     own.strict, files.bytes, files.digest, model.encodes(),
                     picture ? &*picture : nullptr, static_cast<size_t>(own.queue)},
                    &signals, std::cout);
  return 0;
}

}  // namespace rvv_runner
