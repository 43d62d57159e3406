// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/sampling.h"
#include "model/roi.h"

namespace rvv_runner {

struct Arguments {
  bool help = false;
  bool json = false;
  bool unchecked = false;  // do not compare the parameters with their digests
  bool raw = false;        // use the prompt without the chat template
  std::string library;     // empty: the linked-in library
  std::string params;      // folder with tensor-cache.json
  std::string map_folder;  // of the file in which parameters stay; empty: they are read into memory
  std::string logits;      // file to write; empty: do not write
  std::string roundings;   // file to write; empty: do not write
  std::string tokenizer;   // file; empty: prompt and answer are token ids
  std::optional<std::string> prompt;
  std::string prompt_file;  // "-": standard input; empty: not given
  std::vector<int32_t> tokens;
  std::vector<std::string> pictures;         // files
  std::vector<std::vector<int32_t>> beside;  // more prompts for the same batch
  std::vector<int32_t> stop;
  int64_t max_new = 0;        // 0: DefaultMaxNew
  int64_t prefill_chunk = 0;  // 0: as the library says
  int64_t max_seq = 0;        // 0: as the library says, bounded by what is needed
  int64_t check_vlen = 0;     // bits; 0: as the library says
  int64_t threads = 0;        // 0: SetThreads chooses
  int64_t vocab = 0;          // 0: from the embedding's shape
  Region region;
  bool chat = false;    // chat turn by turn
  std::string system;   // the chat's system message; empty: no message
  bool slide = false;   // drop the oldest turns when the context is full
  std::string history;  // file of the chat's earlier messages; empty: HistoryFile; "none": not kept
  // Changes that the sampling options make to the default Sampling.
  std::vector<std::function<void(Sampling*)>> sampling;
  std::set<std::string> given;  // names of all options among the words
};

constexpr int64_t kMostThreads = 1024;

extern const char kUsage[];

// Throws InputError for an unknown option, a missing or malformed value, or a missing option.
Arguments ParseArguments(const std::vector<std::string>& words);

// Parses the same options without the checks of prompt and chat.
Arguments ParseModelArguments(const std::vector<std::string>& words);

// Throws InputError for options that `command` (serve, bench or run) does not use.
void RefuseAnswerOptions(const Arguments& arguments, const std::string& command);

// Returns `defaults` with the changes of the sampling options. Throws InputError that names the
// option whose value is outside of its range; the defaults must be in theirs.
Sampling SamplingOf(const Arguments& arguments, Sampling defaults, int64_t vocabulary);

// The options of a command, by their names.
struct OptionTable {
  // Takes the value of an option. Throws InputError that names the option if the value is wrong.
  using Take = std::function<void(const std::string& option, const std::string& value)>;

  std::map<std::string, bool*> flags = {};
  std::map<std::string, Take> values = {};

  // Reads the words of these options, and adds their names to `given`. Returns the other words.
  // Throws InputError if a value is missing or wrong.
  std::vector<std::string> Read(const std::vector<std::string>& words,
                                std::set<std::string>* given = nullptr) const;
};

// Parses a whole number. Throws InputError that names the option.
int64_t ParseInteger(const std::string& option, const std::string& text, int64_t low, int64_t high);
// The same of whole numbers with commas between them.
std::vector<int64_t> ParseIntegers(const std::string& option, const std::string& text, int64_t low,
                                   int64_t high);

OptionTable::Take TakeText(std::string* target);

template <typename Target>
OptionTable::Take TakeInteger(int64_t low, int64_t high, Target* target) {
  return [=](const std::string& option, const std::string& value) {
    *target = ParseInteger(option, value, low, high);
  };
}

}  // namespace rvv_runner
