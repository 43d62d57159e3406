// SPDX-License-Identifier: Apache-2.0
// The runner's readers under libFuzzer. RUNNER_FUZZ names the one: tokenizer, prompt, index,
// arguments, tensors, rows, picture. Only the runner's own errors may come out of them.
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "bounded_time.h"
#include "engine/prompt_files.h"
#include "input/errors.h"
#include "input/md5.h"
#include "input/read_file.h"
#include "model/param_index.h"
#include "picture/preparation.h"
#include "program/arguments.h"
#include "tensors/safetensors.h"
#include "text/normalize.h"
#include "text/tokenizer.h"

using namespace rvv_runner;

namespace {

void Require(bool holds) {
  if (!holds) std::abort();
}

// A table whose checksum is right, so that what lies behind it is reached.
void FuzzTokenizer(std::string data) {
  if (data.size() >= 16) {
    const uint32_t crc = Crc32(std::string_view(data).substr(16));
    std::memcpy(&data[12], &crc, sizeof(crc));
  }
  const Tokenizer tokenizer(ParseTokenizerFile(data, "file"));
  const Encoded encoded = tokenizer.Encode("It's 12 o'clock,\n  <|end|> \u00e9\u4e2d");
  AnswerText answer(tokenizer);
  std::string text;
  for (const int32_t id : encoded.ids) text += answer.Next(id);
  text += answer.Finish();
  Require(!FirstBroken(text));
}

// RUNNER_FUZZ_TABLE is a good tokenizer.bin: each text that it takes comes back.
void FuzzPrompt(const std::string& data) {
  static const Tokenizer tokenizer(
      ParseTokenizerFile(ReadFile(std::getenv("RUNNER_FUZZ_TABLE")), "table"));
  const Encoded encoded = EncodePrompt(tokenizer, data, true, "prompt");
  AnswerText answer(tokenizer);
  std::string text;
  for (const int32_t id : encoded.ids) {
    const std::string piece = answer.Next(id);
    Require(!FirstBroken(piece));
    text += piece;
  }
  text += answer.Finish();
  const bool markers = data.find('<') != std::string::npos;
  Require(markers || encoded.dropped > 0 || text == data);
  EncodePrompt(tokenizer, data, false, "prompt");
  const std::string normal = Nfc(data);
  Require(!FirstBroken(normal) && Nfc(normal) == normal);
}

void FuzzIndex(const std::string& data) {
  for (const auto& [name, record] : ParseIndex(data, "folder")) {
    Require(record.shard.starts_with("folder/") && record.shard.find('/', 7) == std::string::npos);
    Require(record.offset >= 0 && record.bytes >= 0);
    Require(record.bytes <= record.shard_bytes - record.offset);
    try {
      const StoredAs stored = CheckStored(record, name);
      Require(stored.count >= 0 && stored.count <= record.bytes);
    } catch (const InputError&) {
    }
  }
}

void FuzzArguments(const std::string& data) {
  std::vector<std::string> words;
  size_t start = 0;
  for (size_t end; (end = data.find('\n', start)) != std::string::npos; start = end + 1) {
    words.push_back(data.substr(start, end - start));
  }
  const Arguments arguments = ParseArguments(words);
  for (const int32_t token : arguments.tokens) Require(token >= 0);
}

// Whatever is read of a file of tensors lies in it, and is written the same way again.
void FuzzTensors(const std::string& data) {
  std::vector<std::pair<std::string, TensorBytes>> tensors;
  for (const auto& [name, tensor] : ParseSafetensors(data, "file")) {
    Require(tensor.bytes.empty() ||
            (tensor.bytes.data() >= data.data() &&
             tensor.bytes.data() + tensor.bytes.size() <= data.data() + data.size()));
    tensors.emplace_back(name, tensor);
  }
  const std::string written = MakeSafetensors(tensors);
  const auto again = ParseSafetensors(written, "written");
  Require(again.size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    const TensorBytes& other = again.at(name);
    Require(other.shape == tensor.shape && other.bytes == tensor.bytes);
  }
}

// A file of a prompt's rows, whose digest is right: what is taken is written the same way again.
void FuzzRows(std::string data) {
  static const std::string parent = "0123456789abcdef0123456789abcdef";
  static const std::vector<int32_t> tokens = [] {
    std::vector<int32_t> numbers(PromptFiles::kBlock);
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
  }();
  if (data.size() >= parent.size()) {
    data.resize(data.size() - parent.size());
    Md5 digest;
    digest.Add(data);
    data += digest.Finish();
  }
  const auto rows = PromptFiles::RowsOf(data, parent, tokens.data());
  Require(!rows || PromptFiles::FileOf(parent, tokens.data(), *rows) == data);
}

// A picture has the pixels that it says, and any shape can be prepared. A short file may have millions of
// pixels, which take their time.
void FuzzPicture(const std::string& data) {
  const Picture picture = DecodePicture(data, 1 << 20);
  Require(picture.width > 0 && picture.height > 0);
  Require(std::ssize(picture.pixels) == 3 * picture.width * picture.height);
  Preparation how;
  how.shortest = 33;
  how.size = 28;
  Require(Prepare(picture, how).pixels.size() == 3 * 28 * 28);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const std::map<std::string, void (*)(const std::string&)> kTargets = {
      {"tokenizer", [](const std::string& data) { FuzzTokenizer(data); }},
      {"prompt", FuzzPrompt},
      {"index", FuzzIndex},
      {"arguments", FuzzArguments},
      {"tensors", FuzzTensors},
      {"rows", [](const std::string& data) { FuzzRows(data); }},
      {"picture", FuzzPicture}};
  static const auto target = kTargets.at(std::getenv("RUNNER_FUZZ"));
  const BoundedTime bounded;
  try {
    target(std::string(reinterpret_cast<const char*>(bytes), size));
  } catch (const InputError&) {
  }
  return 0;
}
