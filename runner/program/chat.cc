// SPDX-License-Identifier: Apache-2.0
#include "program/chat.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "engine/defaults.h"
#include "engine/engine.h"
#include "input/errors.h"
#include "input/json.h"
#include "input/read_file.h"
#include "input/resident_bytes.h"
#include "input/utf8.h"
#include "model/model.h"
#include "program/answer_printer.h"
#include "program/limits.h"
#include "program/line_reader.h"
#include "program/threads.h"
#include "program/weights.h"

namespace rvv_runner {
namespace {

constexpr char kHelp[] =
    "  /regen       answer the last message again\n"
    "  /edit        change the last message and send it again; /edit TEXT: send TEXT instead\n"
    "  /reset       clear the conversation (the system message stays)\n"
    "  /save FILE   write the conversation as JSON\n"
    "  /read FILE   send a file's text as the message\n"
    "  /stats       show speed and memory\n"
    "  /wrap        break lines of answers between words, or do not (a terminal breaks them)\n"
    "  /help        this text\n"
    "  /exit, /quit leave (or Ctrl-D)\n"
    "To send a message that begins with /, type //. Ctrl-C ends an answer.\n"
    "In a terminal, Alt-Enter, or \\ at the end of a line, begins another line of the message;\n"
    "Ctrl-R searches earlier messages, Ctrl-Z stops the program until the shell's fg.\n";
constexpr size_t kLongestMessage = size_t{16} << 20;
// Tokens that a sliding context keeps free for an answer.
constexpr int64_t kAnswerRoom = 256;

// Writes a regular file whole or not at all, so that a full disk does not destroy an older file.
void WriteFile(const std::string& path, const std::string& text) {
  std::error_code error;
  // Follow links, so that the link stays and its target is written.
  std::filesystem::path target = std::filesystem::weakly_canonical(path, error);
  if (error) target = path;
  // A device, a pipe, or a link to a missing file is written directly.
  const bool direct = is_symlink(symlink_status(target, error)) ||
                      (exists(target, error) && !is_regular_file(target, error));
  const std::string part = target.string() + (direct ? "" : ".part");
  std::ofstream file(part, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (file && (direct || std::rename(part.c_str(), target.c_str()) == 0)) return;
  if (!direct) std::remove(part.c_str());
  throw InputError("cannot write " + path);
}

class Conversation {
 public:
  Conversation(Engine* engine, const Tokenizer& tokenizer, const Arguments& arguments,
               const Sampling& sampling, bool edits)
      : engine_(engine),
        tokenizer_(tokenizer),
        arguments_(arguments),
        sampling_(sampling),
        edits_(edits) {
    Reset();
  }

  // The last message while /edit waits for what replaces it; else empty.
  const std::string& edited() const { return edited_; }
  void LeaveEdited() { edited_.clear(); }

  // Returns false when the user leaves.
  bool Line(const std::string& line) {
    if (!edited_.empty()) {
      edited_.clear();
      if (!Stripped(line).empty()) Replace(line);
      return true;
    }
    if (line.starts_with("//") || !line.starts_with("/")) {
      const std::string text = line.starts_with("/") ? line.substr(1) : line;
      if (!Stripped(text).empty()) Say(text);
      return true;
    }
    const size_t blank = std::min(line.find(' '), line.size());
    const std::string command = line.substr(0, blank);
    const std::string rest(Stripped(std::string_view(line).substr(blank)));
    if (command == "/exit" || command == "/quit") return false;
    if (command == "/help") {
      std::cerr << kHelp;
    } else if (command == "/reset") {
      Reset();
      std::cerr << "conversation cleared\n";
    } else if (command == "/regen" && rest.empty()) {
      Replace(LastMessage());
    } else if (command == "/edit" && !rest.empty()) {
      Replace(rest);
    } else if (command == "/edit" && edits_) {
      edited_ = LastMessage();
    } else if (command == "/edit") {
      throw InputError("there is no line editor here: type /edit TEXT");
    } else if (command == "/wrap" && rest.empty()) {
      wraps_ = !wraps_;
      std::cerr << (wraps_ ? "lines are broken between words\n" : "lines are not broken\n");
    } else if (command == "/stats") {
      Stats();
    } else if (command == "/save" && !rest.empty()) {
      Save(rest);
    } else if (command == "/read" && rest == "-") {
      throw InputError("/read needs a file; type or paste the message itself");
    } else if (command == "/read" && !rest.empty()) {
      Say(std::string(WithoutMark(ReadFile(rest, kLongestMessage))));
    } else {
      std::cerr << "unknown command, or no FILE after it: " << command
                << "; /help lists the commands\n";
    }
    return true;
  }

 private:
  void Reset() {
    messages_.clear();
    if (!arguments_.system.empty()) {
      messages_.push_back({Message::Role::kSystem, arguments_.system});
    }
  }

  std::string LastMessage() const {
    const auto last = std::find_if(messages_.rbegin(), messages_.rend(), [](const Message& one) {
      return one.role == Message::Role::kUser;
    });
    if (last == messages_.rend()) throw InputError("there is no message yet");
    return last->content;
  }

  // Sends a message in place of the last one. The answer is drawn with other random numbers.
  void Replace(const std::string& text) {
    LastMessage();  // there is one
    const std::vector<Message> before = messages_;
    messages_.erase(messages_.end() - 2, messages_.end());  // with its answer
    if (sampling_.seed) ++*sampling_.seed;
    try {
      Say(text);
    } catch (const InputError&) {
      messages_ = before;
      throw;
    }
  }

  void Say(const std::string& text) {
    messages_.push_back({Message::Role::kUser, text});
    std::vector<int32_t> prompt;
    try {
      prompt = Fitting();
    } catch (const InputError&) {
      messages_.pop_back();
      throw;
    }
    const auto room = engine_->limits().tokens - std::ssize(prompt);
    Request request{prompt, sampling_, arguments_.stop, {}, {}, {}};
    if (request.stop.empty()) request.stop = tokenizer_.stop();
    request.sampling.max_tokens = arguments_.max_new ? std::min(arguments_.max_new, room) : room;
    AnswerPrinter printer(tokenizer_.chat(), wraps_ ? LineReader::Columns() : 0);
    request.on_piece = [&](const Piece& piece) { printer.Next(piece.text); };
    request.on_finish = [&](const Ended& ended) { last_ = ended; };
    LineReader::Interrupted();
    const uint64_t id = engine_->Submit(std::move(request));
    while (engine_->Step()) {
      if (LineReader::Interrupted()) engine_->Cancel(id);
    }
    printer.Finish();
    messages_.push_back({Message::Role::kAssistant, printer.text()});
    if (last_.finish == Finish::kError) throw RunError(last_.error);
    if (last_.finish == Finish::kCancelled) std::cerr << "(ended by Ctrl-C)\n";
    if (last_.finish != Finish::kLength) return;
    if (last_.answer_tokens == arguments_.max_new) {
      std::cerr << "(ended after --max-new " << arguments_.max_new << " tokens)\n";
    } else {
      std::cerr << "(the context of " << engine_->limits().tokens
                << " tokens is full: the answer ends here)\n";
    }
  }

  // Encodes the conversation. With --context-full slide, drops the oldest turns until it fits.
  std::vector<int32_t> Fitting() {
    const int64_t context = engine_->limits().tokens;
    const int64_t wanted = arguments_.slide ? std::min(kAnswerRoom, context / 4) : 1;
    std::vector<Message> kept = messages_;
    const auto turns = [&] { return kept.begin() + (kept[0].role == Message::Role::kSystem); };
    while (true) {
      const Encoded encoded = EncodeChat(tokenizer_, kept, "the message");
      if (std::ssize(encoded.ids) + wanted <= context) {
        if (kept.size() < messages_.size()) {
          std::cerr << "(the context of " << context << " tokens is full: the oldest "
                    << messages_.size() - kept.size() << " messages are left out)\n";
          messages_ = kept;
        }
        if (encoded.dropped > 0) {
          std::cerr << "(the model has no tokens for " << encoded.dropped
                    << " bytes; they are left out)\n";
        }
        return encoded.ids;
      }
      if (!arguments_.slide || kept.end() - turns() < 3) {
        throw InputError("the context is full: with this message it would take " +
                         std::to_string(encoded.ids.size()) + " of " + std::to_string(context) +
                         " tokens; the message was not sent. /reset clears the conversation" +
                         (arguments_.slide ? "" : "; --context-full slide drops the oldest turns"));
      }
      kept.erase(turns(), turns() + 2);
    }
  }

  void Save(const std::string& path) const {
    WriteFile(path, WrittenInOrder(ChatInputOf(messages_).messages, 1) + "\n");
    std::cerr << "saved " << messages_.size() << " messages to " << path << "\n";
  }

  void Stats() const {
    const EngineStats stats = engine_->Stats();
    const auto speed = [](double tokens, double seconds) {
      std::ostringstream text;
      text << std::fixed << std::setprecision(2) << (seconds > 0 ? tokens / seconds : 0.0);
      return text.str() + " tokens/s";
    };
    const double read = SumOf(last_.prefill_seconds), said = SumOf(last_.decode_seconds);
    const auto fresh = static_cast<double>(last_.prompt_tokens - last_.cached_tokens);
    std::cerr << "last answer: " << last_.prompt_tokens << " tokens read, " << last_.cached_tokens
              << " of them from the cache (" << speed(fresh, read) << "), " << last_.answer_tokens
              << " generated (" << speed(static_cast<double>(last_.decode_seconds.size()), said)
              << ")\n"
              << "all answers: " << stats.prompt_tokens << " tokens computed ("
              << speed(static_cast<double>(stats.prompt_tokens), stats.prefill_seconds) << "), "
              << stats.answer_tokens << " generated ("
              << speed(static_cast<double>(stats.decode_steps), stats.decode_seconds) << ")\n"
              << "KV cache: " << stats.pages_used << " of " << stats.pages_total << " pages of "
              << stats.page_tokens << " tokens, " << (stats.cache_bytes >> 20) << " MiB\n"
              << "memory: " << (ResidentBytes() >> 20) << " MiB\n";
  }

  Engine* engine_;
  const Tokenizer& tokenizer_;
  const Arguments& arguments_;
  Sampling sampling_;
  const bool edits_;
  bool wraps_ = true;
  std::string edited_;
  std::vector<Message> messages_;
  Ended last_;
};

// Throws InputError for a line that a terminal without the editor changed: it drops what is longer,
// and it sends the codes of keys that it does not know, such as arrows.
void CheckTyped(const std::string& line) {
  if (line.size() >= LineReader::kTerminalLine) {
    throw InputError("not sent: the terminal cut this line after " + std::to_string(line.size()) +
                     " bytes; write it to a file and type /read FILE");
  }
  if (line.find('\x1B') != std::string::npos) {
    throw InputError("not sent: the line holds the code of a key, such as an arrow; only " +
                     std::string("Backspace, Ctrl-W and Ctrl-U edit a line where TERM is dumb"));
  }
}

// Returns false when the user leaves.
bool Turn(LineReader* reader, Conversation* conversation) {
  const auto line = reader->Next(conversation->edited());
  if (!line) return false;
  if (line->interrupted) {
    conversation->LeaveEdited();
    std::cerr << "\n(type /exit or Ctrl-D to leave)\n";
    return true;
  }
  try {
    if (LineReader::terminal() && !reader->edits()) CheckTyped(line->text);
    return conversation->Line(line->text);
  } catch (const InputError& error) {
    std::cerr << error.what() << "\n";
    return true;
  }
}

}  // namespace

int Chat(const Arguments& arguments) {
  const Tokenizer tokenizer = ReadTokenizer(arguments.tokenizer);
  std::vector<Message> probe{{Message::Role::kUser, "x"}};
  if (!arguments.system.empty()) {
    probe.insert(probe.begin(), {Message::Role::kSystem, arguments.system});
  }
  const Library library(arguments.library, arguments.check_vlen);
  if (library.encodes()) throw InputError(std::string("--chat: ") + kOnlyVectors);
  EncodeChat(tokenizer, probe, "--system");  // refuse a bad --system before the slow start
  SetThreads(arguments.threads);
  const Limits limits = MostOf(library, arguments);
  const Sampling defaults = DefaultSampling(arguments.params);
  const Weights weights = ReadWeights(library, arguments, &tokenizer);
  const Sampling sampling = SamplingOf(arguments, defaults, weights.vocabulary);
  Model model(library, weights.params, {1, limits.max_seq, limits.chunk}, arguments.region);
  Engine engine(&model, &tokenizer, weights.vocabulary, {1, limits.max_seq, limits.chunk, 1});
  const std::string history = arguments.history.empty() ? HistoryFile() : arguments.history;
  LineReader reader(history == "none" ? "" : history);
  Conversation conversation(&engine, tokenizer, arguments, sampling, reader.edits());
  if (LineReader::terminal()) std::cerr << "/help lists the commands\n";
  while (Turn(&reader, &conversation)) {
    if (!std::cout) return 1;
  }
  if (LineReader::terminal()) std::cerr << "\n";
  return 0;
}

}  // namespace rvv_runner
