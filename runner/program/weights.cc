// SPDX-License-Identifier: Apache-2.0
#include "program/weights.h"

#include <filesystem>
#include <optional>

#include "input/errors.h"
#include "input/json.h"
#include "input/log.h"
#include "input/read_file.h"
#include "model/param_index.h"
#include "model/params.h"

namespace rvv_runner {
namespace {

int64_t Vocabulary(const Arguments& arguments, std::optional<int64_t> rows) {
  if (!rows && !arguments.vocab) {
    throw InputError(
        "no parameter has the name of an embedding; give the size of the vocabulary with --vocab");
  }
  if (rows && arguments.vocab > *rows) {
    throw InputError("--vocab " + std::to_string(arguments.vocab) + " is more than the " +
                     std::to_string(*rows) + " rows of the embedding");
  }
  return arguments.vocab ? arguments.vocab : *rows;
}

constexpr size_t kLongestManifest = size_t{16} << 20;

// Reads the manifest beside `params`, the folder of parameters. Warns if the verdict is not right.
void ReadManifest(const std::string& params, Weights* weights) {
  const std::string path = params + "/../MANIFEST.json";
  std::error_code none;
  if (!std::filesystem::exists(path, none)) return;
  const Json manifest = ParseJson(ReadFile(path, kLongestManifest), path);
  const Json* predictions = Find(TableOf(manifest, path), "predictions");
  if (predictions != nullptr) weights->predictions = *predictions;
  const Json* verdict = Find(manifest, "verdict");
  if (verdict == nullptr) return;
  const std::string& text = weights->verdict = TextOf(*verdict, path + ", verdict");
  if (text == "unchecked") {
    Log(LogLevel::kWarn, "this model's answers were not compared with a reference (MANIFEST.json)");
  } else if (text != "right") {
    Log(LogLevel::kWarn,
        "do not use this model: when it was built, its answer was wrong (MANIFEST.json)");
  }
}

}  // namespace

Weights ReadWeights(const Library& library, const Arguments& arguments,
                    const Tokenizer* tokenizer) {
  Weights weights;
  ReadManifest(arguments.params, &weights);
  weights.params =
      LoadParams(arguments.params, library, !arguments.unchecked, arguments.map_folder);
  const int64_t vocabulary = weights.vocabulary =
      Vocabulary(arguments, VocabularySize(WantedParams(library.metadata()), weights.params));
  // Models may round the number of rows up, so more rows than tokens are right; fewer are not.
  if (tokenizer != nullptr && static_cast<int64_t>(tokenizer->size()) > vocabulary) {
    throw InputError("the tokenizer has " + std::to_string(tokenizer->size()) +
                     " tokens, but the model has " + std::to_string(vocabulary) +
                     ": the tokenizer belongs to another model");
  }
  for (const int32_t token : arguments.stop) {
    if (token < vocabulary) continue;
    throw InputError("--stop: token " + std::to_string(token) + " is outside the vocabulary of " +
                     std::to_string(vocabulary));
  }
  return weights;
}

std::string ModelName(const std::string& params) {
  const auto folder = std::filesystem::absolute(params).lexically_normal() / ".";
  const std::string name = folder.parent_path().parent_path().filename().string();
  return name.empty() ? "model" : name;
}

Tokenizer ReadTokenizer(const std::string& file) {
  return Tokenizer(ParseTokenizerFile(ReadFile(file), file));
}

}  // namespace rvv_runner
