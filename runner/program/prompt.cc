// SPDX-License-Identifier: Apache-2.0
#include "program/prompt.h"

#include <bit>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "input/errors.h"
#include "input/log.h"
#include "input/output_file.h"
#include "input/read_file.h"
#include "input/utf8.h"
#include "model/model.h"
#include "program/answer_printer.h"
#include "program/limits.h"
#include "program/report.h"
#include "program/threads.h"
#include "program/weights.h"

namespace rvv_runner {
namespace {

static_assert(std::endian::native == std::endian::little, "logits are written little-endian");

constexpr size_t kLongestPrompt = size_t{16} << 20;
constexpr int64_t kMostIds = 16;
constexpr int64_t kMostText = 256;

constexpr size_t kLongestPicture = size_t{64} << 20;

// A message with places for pictures.
ChatInput WithPictures(const std::string& text, size_t pictures) {
  OrderedJson parts(pictures, {{"type", "image"}});
  parts.push_back({{"type", "text"}, {"text", text}});
  return {OrderedJson::array({{{"role", "user"}, {"content", parts}}}), nullptr};
}

// Reads the pictures, and makes room for them in the prompt.
std::vector<PromptPicture> ReadPictures(const Library& library, Arguments* arguments) {
  const auto how = PreparationOf(library);
  if (arguments->pictures.empty()) return {};
  if (!how) throw InputError(std::string("--picture: ") + kOnlyText);
  std::vector<std::shared_ptr<const PreparedPicture>> pictures;
  for (const std::string& file : arguments->pictures) {
    try {
      const Picture picture = DecodePicture(ReadFile(file, kLongestPicture));
      pictures.push_back(std::make_shared<const PreparedPicture>(Prepare(picture, *how)));
    } catch (const InputError& error) {
      throw InputError("--picture: " + file + " " + error.what());
    }
  }
  return PlacePictures(pictures, *how, &arguments->tokens);
}

// Fills in the token ids of the prompt and the stop tokens.
void ReadPrompt(const Tokenizer& tokenizer, Arguments* arguments) {
  if (arguments->stop.empty()) arguments->stop = tokenizer.stop();
  if (!arguments->tokens.empty()) return;
  const bool typed = arguments->prompt.has_value();
  const std::string text =
      typed ? *arguments->prompt
            : std::string(WithoutMark(ReadFile(arguments->prompt_file, kLongestPrompt)));
  const std::string option = typed ? "--prompt" : "--prompt-file";
  const Encoded prompt =
      arguments->pictures.empty()
          ? EncodePrompt(tokenizer, text, arguments->raw, option)
          : EncodeChat(tokenizer, WithPictures(text, arguments->pictures.size()), option);
  if (prompt.dropped > 0) {
    Log(LogLevel::kWarn, "the model has no tokens for " + std::to_string(prompt.dropped) +
                             " bytes of the prompt; they are left out");
  }
  arguments->tokens = prompt.ids;
}

}  // namespace

int AnswerPrompt(Arguments arguments) {
  std::optional<Tokenizer> tokenizer;
  if (!arguments.tokenizer.empty()) tokenizer.emplace(ReadTokenizer(arguments.tokenizer));
  const Library library(arguments.library, arguments.check_vlen);
  arguments.raw |= library.encodes();
  const bool chats = tokenizer && arguments.tokens.empty() && !arguments.raw;
  if (tokenizer) ReadPrompt(*tokenizer, &arguments);
  std::vector<PromptPicture> pictures = ReadPictures(library, &arguments);
  const Tokenizer* words = tokenizer ? &*tokenizer : nullptr;
  SetThreads(arguments.threads);
  if (arguments.max_new == 0) {
    arguments.max_new = DefaultMaxNew(library, arguments, words ? kMostText : kMostIds);
  }
  const Limits limits = LimitsOf(library, arguments);
  const Weights weights = ReadWeights(library, arguments, words);
  std::optional<OutputFile> logits;
  if (!arguments.logits.empty()) logits.emplace("--logits", arguments.logits);
  const int64_t batch = 1 + std::ssize(arguments.beside);
  const int64_t longest = arguments.region.depth + limits.max_seq;
  Model model(library, weights.params, Model::RoomFor(batch, longest, limits.chunk),
              arguments.region);
  std::optional<RoundingRecord> roundings;
  if (!arguments.roundings.empty()) model.Record(&roundings.emplace(arguments.roundings));
  Engine engine(&model, words, weights.vocabulary, {batch, limits.max_seq, limits.chunk, batch});

  const bool aloud = words != nullptr && !arguments.json && !library.encodes();
  std::vector<int32_t> tokens;
  std::vector<std::vector<int32_t>> beside(arguments.beside.size());
  std::vector<std::vector<float>> vectors(library.encodes() ? batch : 0);
  AnswerPrinter printer(chats ? tokenizer->chat() : ChatTemplate(), 0);
  std::string text, failure;
  Ended ended;
  Request request{arguments.tokens, {}, arguments.stop, {}, {}, {}};
  request.sampling = SamplingOf(arguments, {}, weights.vocabulary);
  request.sampling.max_tokens = arguments.max_new;
  request.embeds = library.encodes();
  request.pictures = std::move(pictures);
  const Request alike = request;
  request.on_piece = [&](const Piece& piece) {
    tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
    text += piece.text;
    if (aloud) printer.Next(piece.text);
  };
  request.on_finish = [&](const Ended& end) {
    ended = end;
    if (!vectors.empty()) vectors[0] = end.embedding;
  };
  if (logits) {
    request.on_logits = [&](const std::vector<float>& row) {
      logits->Write(row.data(), row.size() * sizeof(float));
    };
  }
  engine.Submit(std::move(request));
  for (size_t i = 0; i < beside.size(); ++i) {
    Request other = alike;
    other.tokens = arguments.beside[i];
    other.on_piece = [&, i](const Piece& piece) {
      beside[i].insert(beside[i].end(), piece.tokens.begin(), piece.tokens.end());
    };
    other.on_finish = [&, i](const Ended& end) {
      if (!vectors.empty()) vectors[i + 1] = end.embedding;
      if (end.finish == Finish::kError) failure = end.error;
    };
    engine.Submit(std::move(other));
  }
  while (engine.Step()) {
  }
  if (ended.finish == Finish::kError) failure = ended.error;
  if (!failure.empty()) throw RunError(failure);
  if (aloud) printer.Finish();
  if (logits) logits->Close();
  if (roundings) roundings->Close();
  if (!aloud) {
    Report(arguments, library.vlen(), tokens, beside, vectors, ended,
           words ? std::optional(text) : std::nullopt, DeviceCounters(), std::cout);
  }
  std::cout.flush();
  return std::cout ? 0 : 1;
}

}  // namespace rvv_runner
