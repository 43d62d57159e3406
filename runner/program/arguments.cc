// SPDX-License-Identifier: Apache-2.0
#include "program/arguments.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>

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

OptionTable::Take TakeText(std::string* target) {
  return [=](const std::string&, const std::string& value) { *target = value; };
}

std::vector<std::string> OptionTable::Read(const std::vector<std::string>& words,
                                           std::set<std::string>* given) const {
  std::vector<std::string> others;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const auto flag = flags.find(word);
    const auto option = values.find(word);
    if (flag == flags.end() && option == values.end()) {
      others.push_back(word);
      continue;
    }
    if (given != nullptr) given->insert(word);
    if (flag != flags.end()) {
      *flag->second = true;
    } else if (++i < words.size()) {
      option->second(word, words[i]);
    } else {
      throw InputError(word + " needs a value");
    }
  }
  return others;
}

namespace {

using Take = OptionTable::Take;

std::vector<int32_t> ParseIds(const std::string& option, const std::string& text) {
  const auto ids = ParseIntegers(option, text, 0, std::numeric_limits<int32_t>::max());
  return {ids.begin(), ids.end()};
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

// The sampling options. SamplingOf checks their ranges.
std::map<std::string, Take> SamplingOptions(Arguments* a) {
  const auto change = [a](const auto& set) { a->sampling.push_back(set); };
  const auto real = [=](double Sampling::* field) -> Take {
    return [=](const std::string& option, const std::string& v) {
      change([=, x = ParseNumber(option, v)](Sampling* s) { s->*field = x; });
    };
  };
  const auto top_k = [=](const std::string& option, const std::string& v) {
    change([k = ParseInteger(option, v, 0, kMany)](Sampling* s) { s->top_k = k; });
  };
  const auto seed = [=](const std::string& option, const std::string& v) {
    const int64_t seed = ParseInteger(option, v, 0, std::numeric_limits<int64_t>::max());
    change([=](Sampling* s) { s->seed = static_cast<uint64_t>(seed); });
  };
  const auto bias = [=](const std::string& option, const std::string& v) {
    const size_t colon = v.find(':');
    if (colon == std::string::npos) {
      throw InputError(option + ": '" + v + "' must be ID:X, such as 42:-100");
    }
    const auto id = ParseIds(option, v.substr(0, colon)).front();
    const double added = ParseNumber(option, v.substr(colon + 1));
    change([=](Sampling* s) { s->logit_bias[id] = added; });
  };
  const auto stop = [=](const std::string&, const std::string& v) {
    change([=](Sampling* s) { s->stop.push_back(v); });
  };
  return {
      {"--temperature", real(&Sampling::temperature)},
      {"--top-p", real(&Sampling::top_p)},
      {"--min-p", real(&Sampling::min_p)},
      {"--repetition-penalty", real(&Sampling::repetition_penalty)},
      {"--presence-penalty", real(&Sampling::presence_penalty)},
      {"--frequency-penalty", real(&Sampling::frequency_penalty)},
      {"--top-k", top_k},
      {"--seed", seed},
      {"--logit-bias", bias},
      {"--stop-text", stop},
  };
}

// An empty path, often of a shell variable that is not set, would be the same as no option.
const std::string& PathOf(const std::string& option, const std::string& text) {
  if (text.empty()) throw InputError(option + ": the path is empty");
  return text;
}

// Takes one of `names`.
Take TakeChoice(const std::vector<std::string>& names,
                const std::function<void(const std::string&)>& take) {
  return [=](const std::string& option, const std::string& v) {
    if (std::count(names.begin(), names.end(), v) == 0) {
      std::string known;
      for (const auto& name : names) known += (known.empty() ? "" : ", ") + name;
      throw InputError(option + ": '" + v + "' is not one of " + known);
    }
    take(v);
  };
}

OptionTable ModelOptions(Arguments* a) {
  using Text = const std::string&;
  const auto path = [](std::string* target) -> Take {
    return [=](Text option, Text v) { *target = PathOf(option, v); };
  };
  const auto ids = [](std::vector<int32_t>* target) -> Take {
    return [=](Text option, Text v) { *target = ParseIds(option, v); };
  };
  OptionTable options;
  options.flags = {{"--json", &a->json},
                   {"--raw", &a->raw},
                   {"--no-params-check", &a->unchecked},
                   {"--chat", &a->chat},
                   {"--help", &a->help}};
  options.values = {
      {"--params", path(&a->params)},
      {"--map-params", path(&a->map_folder)},
      {"--lib", path(&a->library)},
      {"--tokenizer", path(&a->tokenizer)},
      {"--prompt", [a](Text, Text v) { a->prompt = v; }},
      {"--prompt-file", path(&a->prompt_file)},
      {"--logits", path(&a->logits)},
      {"--roundings", path(&a->roundings)},
      {"--tokens", ids(&a->tokens)},
      {"--picture", [a](Text option, Text v) { a->pictures.push_back(PathOf(option, v)); }},
      {"--beside", [a](Text option, Text v) { a->beside.push_back(ParseIds(option, v)); }},
      {"--stop", ids(&a->stop)},
      {"--max-new", TakeInteger(1, kMany, &a->max_new)},
      {"--prefill-chunk", TakeInteger(1, kMany, &a->prefill_chunk)},
      {"--max-seq", TakeInteger(1, kMany, &a->max_seq)},
      {"--check-vlen", TakeInteger(0, 65536, &a->check_vlen)},
      {"--threads", TakeInteger(1, kMostThreads, &a->threads)},
      {"--vocab", TakeInteger(1, kMany, &a->vocab)},
      {"--system", TakeText(&a->system)},
      {"--history", path(&a->history)},
      {"--context-full", TakeChoice({"refuse", "slide"}, [a](Text v) { a->slide = v == "slide"; })},
      {"--roi", TakeChoice({"prefill", "decode", "both", "none"},
                           [a](Text v) {
                             a->region.prefill = v == "prefill" || v == "both";
                             a->region.decode = v == "decode" || v == "both";
                           })},
      {"--roi-span",
       TakeChoice({"call", "step"}, [a](Text v) { a->region.whole_step = v == "step"; })},
      {"--roi-depth", TakeInteger(0, kMany, &a->region.depth)},
  };
  options.values.merge(SamplingOptions(a));
  return options;
}

// The first of these options that was given; empty if none was.
std::string FirstGiven(const Arguments& arguments, const std::vector<std::string>& options) {
  const auto found = std::find_if(options.begin(), options.end(), [&](const std::string& option) {
    return arguments.given.contains(option);
  });
  return found == options.end() ? "" : *found;
}

void CheckChat(const Arguments& arguments) {
  if (arguments.tokenizer.empty()) {
    throw InputError("--chat needs --tokenizer: the model's tokenizer.bin");
  }
  const std::string other =
      FirstGiven(arguments, {"--prompt", "--prompt-file", "--tokens", "--picture", "--beside",
                             "--raw", "--json", "--logits", "--roundings", "--roi-depth"});
  if (!other.empty()) throw InputError("--chat cannot be combined with " + other);
}

// Checks that there is one prompt, and that its options fit together.
void CheckPrompt(const Arguments& arguments) {
  const std::string of_chats = FirstGiven(arguments, {"--system", "--context-full", "--history"});
  if (!of_chats.empty()) throw InputError(of_chats + " needs --chat");
  if (arguments.given.contains("--stop-text") && arguments.tokenizer.empty()) {
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
  const auto unknown = ModelOptions(&arguments).Read(words, &arguments.given);
  if (arguments.help) return arguments;
  if (!unknown.empty()) {
    throw InputError("unknown option '" + unknown[0] + "'; --help lists the options");
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
  std::vector<std::string> refused = {
      "--prompt",  "--prompt-file",  "--tokens", "--picture",   "--beside",
      "--stop",    "--max-new",      "--logits", "--roundings", "--system",
      "--history", "--context-full", "--raw",    "--chat",      "--roi-depth"};
  if (command != "bench") refused.push_back("--json");
  if (command == "run") {
    refused.insert(refused.end(), {"--prefill-chunk", "--max-seq", "--vocab"});
  }
  if (command != "serve") {  // the others choose no tokens, and mark their own calls
    refused.insert(refused.end(), {"--tokenizer", "--roi", "--roi-span"});
    for (const auto& [option, take] : SamplingOptions(nullptr)) refused.push_back(option);
  }
  const std::string option = FirstGiven(arguments, refused);
  if (option.empty()) return;
  throw InputError(option + " is not an option of " + command + "; runner " + command +
                   " --help lists the options");
}

Sampling SamplingOf(const Arguments& arguments, Sampling defaults, int64_t vocabulary) {
  for (const auto& change : arguments.sampling) change(&defaults);
  CheckSampling(defaults, vocabulary, SamplingNames::kOptions);
  return defaults;
}

}  // namespace rvv_runner
