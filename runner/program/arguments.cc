// SPDX-License-Identifier: Apache-2.0
#include "program/arguments.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>

#include "input/errors.h"

namespace rvv_runner {

const char kUsage[] =
    "usage: runner --params DIR --tokenizer FILE --prompt TEXT [options]\n"
    "       runner --params DIR --tokenizer FILE --chat [options]\n"
    "       runner --params DIR --tokens 1,2,3 [options]\n"
    "       runner serve --params DIR --tokenizer FILE [options; runner serve --help lists them]\n"
    "       runner bench --params DIR [options; runner bench --help lists them]\n"
    "       runner run --params DIR --inputs FILE --outputs FILE [runner run --help]\n"
    "Answers a prompt, given as text or as token ids, or chats turn by turn.\n\n"
    "  --params DIR         folder with tensor-cache.json and its shards\n"
    "  --tokenizer FILE     tokenizer.bin of the model; with it, the answer is printed as text\n"
    "  --prompt TEXT        the user's message, in the model's chat template\n"
    "  --prompt-file FILE   read the message from a file; - is the standard input\n"
    "  --raw                use the prompt as it is, without the chat template\n"
    "  --tokens ID,ID,...   the prompt as token ids\n"
    "  --picture FILE       a PNG or JPEG file that the message shows; may be repeated\n"
    "  --lib FILE.so        model library (the one linked into this program)\n"
    "  --max-new N          most tokens to generate (what fits, up to 256 for text, 16 for ids)\n"
    "  --stop ID,ID,...     stop after one of these tokens (the tokenizer's stop tokens)\n"
    "  --prefill-chunk N    most tokens of one prefill call (the library's limit)\n"
    "  --max-seq N          most tokens of prompt and answer (the library's context)\n"
    "  --threads N          threads that compute (TVM_NUM_THREADS, or else the physical cores "
    "that\n"
    "                       can run the library)\n"
    "  --logits FILE        write float32 logits, one row for each generated token\n"
    "  --roundings FILE     write what was rounded to int8, for a reference that checks the "
    "answer\n"
    "  --json               print the result as JSON\n"
    "  --check-vlen BITS    refuse a CPU whose vector registers are shorter than this\n"
    "  --map-params DIR     leave the parameters on the disk, in a file in DIR that the first "
    "start\n"
    "                       writes: for a model larger than the memory\n"
    "  --no-params-check    start sooner: do not compare the parameters with their digests\n"
    "  --vocab N            size of the vocabulary (the number of rows of the embedding)\n"
    "  --chat               chat turn by turn; /help lists the commands\n"
    "  --system TEXT        the chat's system message\n"
    "  --context-full WHAT  refuse: refuse a message that does not fit; slide: drop the oldest\n"
    "                       turns (refuse)\n"
    "  --history FILE       messages that were typed, for the arrow keys; none: keep none\n"
    "                       (~/.mlc_rvv_history)\n"
    "sampling (a prompt: greedy; a chat: the values of the model's mlc-chat-config.json):\n"
    "  --temperature X      0 always chooses the likeliest token\n"
    "  --top-p X  --min-p X  --top-k N\n"
    "  --repetition-penalty X  --presence-penalty X  --frequency-penalty X\n"
    "  --seed N             repeat a seed to get the same text again\n"
    "  --logit-bias ID:X    add X to the logit of token ID; may be repeated\n"
    "  --stop-text TEXT     stop before this text; may be repeated\n"
    "measuring:\n"
    "  --beside ID,ID,...   another prompt to answer in the same batch, not longer than --tokens;\n"
    "                       may be repeated; needs --json\n"
    "  --roi WHICH          calls to mark for an instruction counter: prefill, decode, both, none\n"
    "                       (both)\n"
    "  --roi-span WHAT      mark the model call alone (call) or the whole step (step) (call)\n"
    "  --roi-depth N        tokens in the cache before the prompt, which are not computed: the\n"
    "                       answer means nothing (0)\n"
    "  --help               this text\n";

int64_t ParseInteger(const std::string& option, const std::string& text, int64_t low,
                     int64_t high) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  const bool huge = error == std::errc::result_out_of_range;
  if ((error != std::errc() && !huge) || stopped != end) {
    throw InputError(option + ": '" + text + "' is not a whole number");
  }
  if (huge || value < low || value > high) {
    throw InputError(option + ": " + text + " is outside " + std::to_string(low) + " to " +
                     std::to_string(high));
  }
  return value;
}

std::vector<int64_t> ParseIntegers(const std::string& option, const std::string& text, int64_t low,
                                   int64_t high) {
  std::vector<int64_t> numbers;
  for (size_t start = 0; start <= text.size();) {
    const size_t comma = std::min(text.find(',', start), text.size());
    numbers.push_back(ParseInteger(option, text.substr(start, comma - start), low, high));
    start = comma + 1;
  }
  return numbers;
}

namespace {

std::vector<int32_t> ParseIds(const std::string& option, const std::string& text) {
  const auto ids = ParseIntegers(option, text, 0, std::numeric_limits<int32_t>::max());
  return {ids.begin(), ids.end()};
}

void ParseRegion(const std::string& text, Region* region) {
  if (text != "prefill" && text != "decode" && text != "both" && text != "none") {
    throw InputError("--roi: '" + text + "' is not one of prefill, decode, both, none");
  }
  region->prefill = text == "prefill" || text == "both";
  region->decode = text == "decode" || text == "both";
}

void ParseSpan(const std::string& text, Region* region) {
  if (text != "call" && text != "step") {
    throw InputError("--roi-span: '" + text + "' is neither call nor step");
  }
  region->whole_step = text == "step";
}

constexpr int64_t kMany = int64_t{1} << 30;

double ParseNumber(const std::string& option, const std::string& text) {
  // Not from_chars: libc++, which zig links, has it for real numbers since version 20 only.
  char* stopped = nullptr;
  const double value = std::strtod(text.c_str(), &stopped);
  const bool whole = stopped == text.c_str() + text.size();
  if (text.empty() || text[0] == ' ' || !whole) {
    throw InputError(option + ": '" + text + "' is not a number");
  }
  return value;
}

using Setter = std::function<void(const std::string&)>;

// The sampling options. SamplingOf checks their ranges.
std::map<std::string, Setter> SamplingOptions(Arguments* a) {
  std::map<std::string, Setter> options;
  const auto change = [a](const auto& set) { a->sampling.push_back(set); };
  const auto real = [&](const std::string& name, double Sampling::* field) {
    options[name] = [=](const std::string& v) {
      change([=, x = ParseNumber(name, v)](Sampling* s) { s->*field = x; });
    };
  };
  real("--temperature", &Sampling::temperature);
  real("--top-p", &Sampling::top_p);
  real("--min-p", &Sampling::min_p);
  real("--repetition-penalty", &Sampling::repetition_penalty);
  real("--presence-penalty", &Sampling::presence_penalty);
  real("--frequency-penalty", &Sampling::frequency_penalty);
  options["--top-k"] = [=](const std::string& v) {
    change([k = ParseInteger("--top-k", v, 0, kMany)](Sampling* s) { s->top_k = k; });
  };
  options["--seed"] = [=](const std::string& v) {
    const int64_t seed = ParseInteger("--seed", v, 0, std::numeric_limits<int64_t>::max());
    change([=](Sampling* s) { s->seed = static_cast<uint64_t>(seed); });
  };
  options["--logit-bias"] = [=](const std::string& v) {
    const size_t colon = v.find(':');
    if (colon == std::string::npos) {
      throw InputError("--logit-bias: '" + v + "' must be ID:X, such as 42:-100");
    }
    const auto id = ParseIds("--logit-bias", v.substr(0, colon)).front();
    const double bias = ParseNumber("--logit-bias", v.substr(colon + 1));
    change([=](Sampling* s) { s->logit_bias[id] = bias; });
  };
  options["--stop-text"] = [=](const std::string& v) {
    change([=](Sampling* s) { s->stop.push_back(v); });
  };
  return options;
}

// An empty path, often of a shell variable that is not set, would be the same as no option.
const std::string& PathOf(const char* option, const std::string& text) {
  if (text.empty()) throw InputError(std::string(option) + ": the path is empty");
  return text;
}

void ParseFull(const std::string& text, bool* slide) {
  if (text != "slide" && text != "refuse") {
    throw InputError("--context-full: '" + text + "' is neither slide nor refuse");
  }
  *slide = text == "slide";
}

std::map<std::string, Setter> Options(Arguments* a) {
  const auto number = [](const char* name, int64_t low, int64_t high, int64_t* target) {
    return [=](const std::string& v) { *target = ParseInteger(name, v, low, high); };
  };
  const auto path = [](const char* name, std::string* target) {
    return [=](const std::string& v) { *target = PathOf(name, v); };
  };
  return {
      {"--params", path("--params", &a->params)},
      {"--map-params", path("--map-params", &a->map_folder)},
      {"--lib", path("--lib", &a->library)},
      {"--tokenizer", path("--tokenizer", &a->tokenizer)},
      {"--prompt", [a](const std::string& v) { a->prompt = v; }},
      {"--prompt-file", path("--prompt-file", &a->prompt_file)},
      {"--logits", path("--logits", &a->logits)},
      {"--roundings", path("--roundings", &a->roundings)},
      {"--tokens", [a](const std::string& v) { a->tokens = ParseIds("--tokens", v); }},
      {"--picture", [a](const std::string& v) { a->pictures.push_back(PathOf("--picture", v)); }},
      {"--beside", [a](const std::string& v) { a->beside.push_back(ParseIds("--beside", v)); }},
      {"--stop", [a](const std::string& v) { a->stop = ParseIds("--stop", v); }},
      {"--max-new", number("--max-new", 1, kMany, &a->max_new)},
      {"--prefill-chunk", number("--prefill-chunk", 1, kMany, &a->prefill_chunk)},
      {"--max-seq", number("--max-seq", 1, kMany, &a->max_seq)},
      {"--check-vlen", number("--check-vlen", 0, 65536, &a->check_vlen)},
      {"--threads", number("--threads", 1, kMostThreads, &a->threads)},
      {"--vocab", number("--vocab", 1, kMany, &a->vocab)},
      {"--system", [a](const std::string& v) { a->system = v; }},
      {"--history", path("--history", &a->history)},
      {"--context-full", [a](const std::string& v) { ParseFull(v, &a->slide); }},
      {"--roi", [a](const std::string& v) { ParseRegion(v, &a->region); }},
      {"--roi-span", [a](const std::string& v) { ParseSpan(v, &a->region); }},
      {"--roi-depth", number("--roi-depth", 0, kMany, &a->region.depth)},
  };
}

bool* FlagOf(const std::string& word, Arguments* a) {
  if (word == "--json") return &a->json;
  if (word == "--raw") return &a->raw;
  if (word == "--no-params-check") return &a->unchecked;
  return word == "--chat" ? &a->chat : nullptr;
}

void CheckChat(const Arguments& arguments) {
  if (arguments.tokenizer.empty()) {
    throw InputError("--chat needs --tokenizer: the model's tokenizer.bin");
  }
  if (arguments.prompt || !arguments.prompt_file.empty() || !arguments.tokens.empty() ||
      arguments.raw || arguments.json || !arguments.logits.empty() ||
      !arguments.roundings.empty() || !arguments.beside.empty() || arguments.region.depth > 0 ||
      !arguments.pictures.empty()) {
    throw InputError(
        "--chat cannot be combined with --prompt, --prompt-file, --tokens, --picture, --beside, "
        "--raw, --json, --logits, --roundings or --roi-depth");
  }
}

// Checks that there is one prompt, and that its options fit together.
void CheckPrompt(const Arguments& arguments) {
  if (!arguments.system.empty() || arguments.slide || !arguments.history.empty()) {
    throw InputError("--system, --context-full and --history need --chat");
  }
  Sampling sampling;
  for (const auto& change : arguments.sampling) change(&sampling);
  if (!sampling.stop.empty() && arguments.tokenizer.empty()) {
    throw InputError("--stop-text needs --tokenizer: the model's tokenizer.bin");
  }
  if (!arguments.logits.empty() && arguments.logits == arguments.roundings) {
    throw InputError("--logits and --roundings would both write " + arguments.logits);
  }
  const bool text = arguments.prompt.has_value() || !arguments.prompt_file.empty();
  const int prompts =
      arguments.prompt.has_value() + !arguments.prompt_file.empty() + !arguments.tokens.empty();
  if (prompts == 0) {
    throw InputError(arguments.tokenizer.empty() ? "--tokens is missing: the prompt's token ids"
                                                 : "--prompt is missing: the user's message");
  }
  if (prompts > 1) throw InputError("give only one of --prompt, --prompt-file, --tokens");
  if (text && arguments.tokenizer.empty()) {
    throw InputError("a text prompt needs --tokenizer: the model's tokenizer.bin");
  }
  if (arguments.raw && !text)
    throw InputError("--raw needs a text prompt: --prompt or --prompt-file");
  if (!arguments.pictures.empty() && (arguments.raw || !arguments.beside.empty())) {
    throw InputError("--picture cannot be combined with --raw or --beside");
  }
  if (arguments.beside.empty()) return;
  if (arguments.tokens.empty() || !arguments.json || !arguments.logits.empty() ||
      !arguments.roundings.empty()) {
    throw InputError(
        "--beside needs --tokens and --json, and cannot be combined with --logits or --roundings");
  }
  for (const auto& prompt : arguments.beside) {
    if (prompt.size() > arguments.tokens.size()) {
      throw InputError("--beside: a prompt of " + std::to_string(prompt.size()) +
                       " tokens is longer than the prompt of --tokens, which has " +
                       std::to_string(arguments.tokens.size()));
    }
  }
}

}  // namespace

Arguments ParseModelArguments(const std::vector<std::string>& words) {
  Arguments arguments;
  auto options = Options(&arguments);
  options.merge(SamplingOptions(&arguments));
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--help") {
      arguments.help = true;
      return arguments;
    }
    if (bool* flag = FlagOf(words[i], &arguments)) {
      *flag = true;
      continue;
    }
    const auto option = options.find(words[i]);
    if (option == options.end()) {
      throw InputError("unknown option '" + words[i] + "'; --help lists the options");
    }
    if (++i == words.size()) throw InputError(option->first + " needs a value");
    option->second(words[i]);
  }
  if (arguments.params.empty()) throw InputError("--params is missing: the folder of parameters");
  return arguments;
}

Arguments ParseArguments(const std::vector<std::string>& words) {
  const Arguments arguments = ParseModelArguments(words);
  if (!arguments.help) (arguments.chat ? CheckChat : CheckPrompt)(arguments);
  return arguments;
}

void RefuseAnswerOptions(const Arguments& arguments, const std::string& command) {
  const Region& region = arguments.region;
  const bool bench = command == "bench";  // it chooses no tokens, and marks no call
  const std::pair<bool, const char*> given[] = {
      {arguments.prompt.has_value(), "--prompt"},
      {!arguments.prompt_file.empty(), "--prompt-file"},
      {!arguments.tokens.empty(), "--tokens"},
      {!arguments.pictures.empty(), "--picture"},
      {!arguments.beside.empty(), "--beside"},
      {!arguments.stop.empty(), "--stop"},
      {arguments.max_new > 0, "--max-new"},
      {!arguments.logits.empty(), "--logits"},
      {!arguments.roundings.empty(), "--roundings"},
      {!arguments.system.empty(), "--system"},
      {arguments.slide, "--context-full"},
      {!arguments.history.empty(), "--history"},
      {arguments.raw, "--raw"},
      {arguments.chat, "--chat"},
      {region.depth > 0, "--roi-depth"},
      {!bench && arguments.json, "--json"},
      {bench && !arguments.tokenizer.empty(), "--tokenizer"},
      {bench && !arguments.sampling.empty(), "a sampling option (such as --temperature)"},
      {bench && !(region.prefill && region.decode), "--roi"},
      {bench && region.whole_step, "--roi-span"},
  };
  for (const auto& [found, option] : given) {
    if (!found) continue;
    throw InputError(std::string(option) + " is not an option of " + command + "; runner " +
                     command + " --help lists the options");
  }
}

Sampling SamplingOf(const Arguments& arguments, Sampling defaults, int64_t vocabulary) {
  for (const auto& change : arguments.sampling) change(&defaults);
  CheckSampling(defaults, vocabulary, SamplingNames::kOptions);
  return defaults;
}

}  // namespace rvv_runner
