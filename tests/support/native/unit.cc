// SPDX-License-Identifier: Apache-2.0
// Checks of the runner's parts that need no model: `native_tests unit NAME`, one of kChecks.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "api/answer_check.h"
#include "api/api_request.h"
#include "api/conversation.h"
#include "grammar/pattern.h"
#include "grammar/schema.h"
#include "grammar/validator.h"
#include "input/available_bytes.h"
#include "input/errors.h"
#include "input/json.h"
#include "input/md5.h"
#include "input/utf8.h"
#include "model/cpus.h"
#include "model/huge_pages.h"
#include "model/mapped_file.h"
#include "program/edited_line.h"
#include "program/keys.h"
#include "program/threads.h"
#include "program/word_wrap.h"
#include "text/normalize.h"
#include "text/unicode.h"

using namespace rvv_runner;

namespace {

void Check(bool right, const std::string& what) {
  if (!right) throw std::runtime_error("wrong: " + what);
}

// True if the call throws an error of the user's input.
bool Refuses(const std::function<void()>& call) {
  try {
    call();
  } catch (const InputError&) {
    return true;
  }
  return false;
}

void Utf8() {
  Check(Characters("a\xC3\xA9\xE2\x82\xAC") == 3, "characters of 1, 2 and 3 bytes");
  Check(!FirstBroken("a\xF0\x9F\x98\x80"), "a character of 4 bytes is whole");
  Check(FirstBroken("ab\xC0\xAF") == 2, "an overlong character is broken");
  Check(FirstBroken("\xED\xA0\x80") == 0, "a surrogate is broken");
  Utf8Stream stream;
  Check(stream.Feed("\xE2\x82").empty() && stream.pending(), "a beginning is kept");
  Check(stream.Feed("\xAC!") == "\xE2\x82\xAC!", "its rest completes it");
}

void Digest() {
  const std::map<std::string, std::string> known = {
      // RFC 1321, A.5
      {"", "d41d8cd98f00b204e9800998ecf8427e"},
      {"abc", "900150983cd24fb0d6963f7d28e17f72"},
      {"12345678901234567890123456789012345678901234567890123456789012345678901234567890",
       "57edf4a22be3c955ac49da2e2107b67a"}};
  for (const auto& [text, digest] : known) {
    Md5 whole, parts;
    whole.Add(text);
    for (const char byte : text) parts.Add({&byte, 1});
    Check(whole.Finish() == digest, "MD5 of '" + text + "'");
    Check(parts.Finish() == digest, "MD5 of '" + text + "', byte by byte");
  }
}

void JsonText() {
  Check(ParseJson("[1, {\"a\": 2}]", "it").size() == 2, "a list of two");
  Check(Refuses([] { ParseJson("{", "it"); }), "an open table");
  Check(Refuses([] { ParseJson(std::string(100, '['), "it", {.deepest = 8}); }), "nested lists");
  const JsonBounds unique{.unique_names = true};
  Check(Refuses([&] { ParseJson(R"({"a": 1, "a": 2})", "it", unique); }), "a name twice");
  const std::string ordered = R"({"b":[{"d":1,"c":[]},2.5],"a":{"z":null,"b":true}})";
  Check(ParseOrderedJson(ordered, "it").dump() == ordered, "the order of fields");
  const char* twice = R"([{"a":1},{"b":[2,4],"c":{},"b":3}])";
  Check(Refuses([&] { ParseOrderedJson(twice, "it", unique); }), "a name twice in order");
  Check(ParseOrderedJson(twice, "it").dump() == R"([{"a":1},{"b":3,"c":{}}])", "the last counts");
}

void EarlierCalls() {
  std::vector<std::string> ignored;
  const auto messages = ReadMessages("messages", Json::parse(R"([{"role": "assistant",
      "reasoning_content": "so", "tool_calls": [{"function": {"name": "f",
      "arguments": "{\"town\": {\"y\": 1, \"x\": 2}, \"days\": 3}"}}]}])"),
                                     &ignored);
  Check(messages[0]["tool_calls"][0]["function"]["arguments"].dump() ==
            R"({"town":{"y":1,"x":2},"days":3})",
        "arguments in the order of the model");
  Check(messages[0]["thinking"] == "so" && messages[0]["reasoning_content"] == "so",
        "thoughts by both names");
  const auto said = ReadMessages("messages", Json::parse(R"([{"role": "assistant", "content": "a",
      "reasoning_content": "so", "tool_calls": [{"function": {"name": "f"}}]}])"),
                                 &ignored);
  Check(!said[0].contains("thinking") && said[0]["reasoning_content"] == "so",
        "thoughts beside a text and a call");
}

void Characters() {
  Check(IsLetter(0xE9) && IsSmall(0xE9) && !IsCapital(0xE9), "U+00E9 is a small letter");
  Check(IsDigit(0x664) && IsSpace(0x3000) && IsMark(0x301), "a digit, a space, a mark");
  Check(ColumnsOf(0x4E2D) == 2 && ColumnsOf('a') == 1 && ColumnsOf(0x301) == 0, "columns");
  Check(Nfc("e\xCC\x81") == "\xC3\xA9", "e and an accent are one character in NFC");
}

void Schemas() {
  const auto prepared = [](const char* text) {
    return PreparedSchema(OrderedJson::parse(text), "schema");
  };
  Check(prepared(R"({"type": "integer"})").is_object(), "a plain schema");
  Check(Refuses([&] { prepared(R"({"not": {"const": 1}})"); }), "'not' has no grammar");
  Check(ReadPattern("^[a-z]{2,3}$").wrong.empty(), "a plain pattern");
  Check(Refuses([&] { prepared(R"({"uniqueItems": true})"); }), "items that differ");
}

bool Fits(const char* schema, const std::string& text) {
  return Validator(OrderedJson::parse(schema), "schema").Fault(text).empty();
}

void Answers() {
  constexpr char kObject[] = R"({"properties": {"a": {"type": "integer"}}, "required": ["a"]})";
  Check(Fits(kObject, R"({"a": 1.0})"), "1.0 is a whole number");
  Check(!Fits(kObject, R"({"a": "1"})") && !Fits(kObject, "{}"), "another type, no property");
  Check(!Fits(kObject, R"({"a": 1)") && !Fits("true", "") && !Fits("true", "1 2"), "no JSON text");
  Check(!Fits(R"({"enum": ["Straße"]})", R"("Stra\u0dfe")"), "another letter");
  constexpr char kNamed[] = R"({"patternProperties": {"^x": {"type": "null"}},
                               "additionalProperties": false})";
  Check(Fits(R"({"pattern": "(x+x+)+y"})", '"' + std::string(1 << 20, 'x') + '"'), "a pattern");
  Check(Fits(kNamed, R"({"x1": null})"), "properties by a pattern");
  constexpr char kPatternNamed[] = R"({"properties": {"pattern": {"type": "null"}},
                                      "additionalProperties": false})";
  Check(!Fits(kPatternNamed, R"({"b": null})"), "a property of that name");
  constexpr char kDraft[] = R"({"$schema": "http://json-schema.org/draft-07/schema",
                               "items": [{"type": "null"}]})";
  Check(Fits(kDraft, "[null, 3]") && !Fits(kDraft, "[3]"), "a list of schemas in draft 7");
  Check(Fits(R"({"$schema": "urn:none", "type": "null"})", "null"), "an unknown draft");
  Check(Fits(R"({"exclusiveMinimum": 0.5})", std::string(40, '9')), "a number of 40 digits");
  Check(!Fits("true", std::string(100000, '[')), "deep lists");
  Check(Refuses([] { Validator(OrderedJson::parse(R"({"$ref": "#/none"})"), "schema"); }),
        "a reference to nothing");

  ToolFormat format;
  format.begin = "<c>";
  format.open = "{";
  format.middle = ":";
  format.close = "}";
  format.end = "</c>";
  Form form;
  form.tools = {{"f", OrderedJson::parse(kObject), "tools[0]"}};
  const auto fault = [&](const std::string& text) {
    AnswerCheck check(form, &format, Thoughts::kNone, 2);
    for (const char byte : text) check.Next(1, {&byte, 1});
    Check(check.Fault(0) == (form.must_call ? "it calls no tool" : ""), "an empty answer");
    return check.Fault(1);
  };
  Check(fault("so<c>{f:{\"a\": 1}}</c>").empty(), "a call that fits");
  Check(fault("<c>{f:{\"a\": null}}</c>").starts_with("the arguments of f: /a"), "arguments");
  Check(!fault("<c>{g:{}}</c>").empty(), "a tool that is not there");
  form.must_call = true;
  Check(!fault("text").empty(), "no call");
}

// The flags of the mapping that holds an address (proc(5), smaps).
std::string FlagsOf(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      const auto at = reinterpret_cast<uintptr_t>(address);
      inside = begin <= at && at < end;
    } else if (inside && line.starts_with("VmFlags:")) {
      return line + " ";
    }
  }
  return "";
}

void BlocksOfArena() {
  for (const size_t size : {size_t{1}, size_t{64}, size_t{3} << 20, size_t{4} << 20}) {
    const size_t room = 2 * Arena::BytesOf(size);
    Arena arena(HugePages(room), room);
    const char *first = arena.Take(size), *second = arena.Take(size);
    Check(reinterpret_cast<uintptr_t>(first) % (size_t{2} << 20) == 0, "the first block's address");
    Check(second == first + (size + 63) / 64 * 64, "the second block's address");
    Check(std::all_of(first, second + size, [](char byte) { return byte == 0; }), "zeros");
    if (std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) {
      Check(FlagsOf(first).find(" hg ") != std::string::npos, "the kernel was not advised");
    }
    try {
      arena.Take(size_t{8} << 20);
      Check(false, "a block that does not fit");
    } catch (const std::logic_error&) {
    }
  }
  Check(Refuses([] { HugePages(size_t{1} << 62); }), "too much memory");
  if (std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) {
    Check(FlagsOf(SmallPages(1).get()).find(" nh ") != std::string::npos, "advised huge pages");
  }
}

void Nodes() {
  char folder[] = "/tmp/nodes-XXXXXX";
  Check(mkdtemp(folder) != nullptr, "a folder");
  const std::filesystem::path made(folder);
  Check(MemoryNodes(folder + std::string("/missing")) == 1, "a kernel without nodes");
  Check(MemoryNodes(folder) == 1, "no nodes");
  for (const char* name : {"node0", "node", "nodes", "node1x", "possible", "node12"}) {
    std::filesystem::create_directory(made / name);
  }
  Check(MemoryNodes(folder) == 2, "two nodes");
  std::filesystem::remove_all(made);
}

void Wrapping() {
  const auto shown = [](size_t columns, const std::string& text, size_t piece) {
    WordWrap wrap(columns);
    std::string out;
    for (size_t at = 0; at < text.size(); at += piece) out += wrap.Next(text.substr(at, piece));
    return out + wrap.Finish();
  };
  const std::map<std::string, std::string> known = {
      {"one two three", "one two \nthree"},
      {"12345678 a", "12345678\na"},
      {"1234567 a", "1234567 \na"},
      {"a 1234567890 b", "a \n1234567890 b"},
      {"a\nb\n\n  c d", "a\nb\n\n  c d"},
      {"a\tb", "a\t\nb"},
      {"\xE4\xBD\xA0\xE5\xA5\xBD\xE4\xBD\xA0\xE5\xA5\xBD\xE4\xBD\xA0",
       "\xE4\xBD\xA0\xE5\xA5\xBD\xE4\xBD\xA0\xE5\xA5\xBD\n\xE4\xBD\xA0"},
  };
  for (const auto& [text, expected] : known) {
    Check(shown(8, text, text.size()) == expected, text + " gives " + shown(8, text, text.size()));
    Check(shown(0, text, text.size()) == text, "without a terminal");
    if (text[0] < 0x7F && text[0] > 0) Check(shown(8, text, 1) == expected, text + " in pieces");
  }
  WordWrap wrap(8);
  Check(wrap.Next("one tw") == "one ", "a word is held back");
}

// The text after keys, in the bytes of a terminal.
std::string Edited(std::string bytes, const std::vector<std::string>& history) {
  EditedLine line("", history);
  for (Key key; TakeKey(&bytes, &key);) {
    line.Press(key);
    Check(!line.Draw("> ", 20, 5).empty(), "drawn");
  }
  return line.text();
}

void HistorySearch() {
  const std::vector<std::string> history = {"first blue", "a red one", "blue again", "last"};
  const std::map<std::string, std::string> known = {
      {"new\x12"
       "blue",
       "blue again"},
      {"\x12"
       "blue\x12",
       "first blue"},
      {"\x12"
       "blue\x12\x12",
       "first blue"},
      {"\x12"
       "red\x7F\x7F\x7F"
       "bl",
       "blue again"},
      {"new\x12"
       "zzz",
       "new"},
      {"new\x12"
       "blue\x07",
       "new"},
      {"new\x12"
       "blue\x03",
       "new"},
      {"\x12"
       "first\x05!",
       "first blue!"},
      {"\x12"
       "first\x1B[D!",
       "!first blue"},
      {"\x12"
       "last\x1B[A",
       "blue again"},
  };
  for (const auto& [bytes, expected] : known) {
    Check(Edited(bytes, history) == expected, bytes + " gives " + Edited(bytes, history));
  }
}

void MemoryOfGroups() {
  char folder[] = "/tmp/groups-XXXXXX";
  const std::string root = mkdtemp(folder);
  const auto write = [&root](const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  };
  const auto available = [&root] { return AvailableBytes(root); };
  Check(available() == 0, "a system that reports nothing");
  write("/proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n");
  Check(available() == 8000 * 1024, "a system without control groups");
  const std::string top = "/sys/fs/cgroup";
  write("/proc/self/cgroup", "0::/user/board\n");
  write(top + "/user/board/memory.max", "max\n");
  write(top + "/user/board/memory.current", "1000\n");
  Check(available() == 8000 * 1024, "a group without a limit");
  write(top + "/user/memory.max", "500000\n");
  write(top + "/user/memory.current", "300000\n");
  write(top + "/user/memory.stat", "anon 1\ninactive_file 100000\n");
  Check(available() == 300000, "the limit of the group around it, less what is in use");
  write(top + "/user/board/memory.max", "1000\n");
  Check(available() == 1, "a group at its limit");
  // A container that does not see the path of its group.
  write("/proc/self/cgroup", "12:cpu:/\n9:memory:/docker/1f\n0::/unseen\n");
  write(top + "/memory/memory.limit_in_bytes", "700000\n");
  write(top + "/memory/memory.usage_in_bytes", "300000\n");
  write(top + "/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 50000\n");
  Check(available() == 450000, "version 1");
  std::filesystem::remove_all(root);
}

// Two first starts at once, which a reader has kept from writing: one writes, and both go on.
void FirstStarts() {
  char folder[] = "/tmp/mapped-XXXXXX";
  const std::string root = mkdtemp(folder);
  const std::string content = "what both of them read";
  const auto started = [&] {
    auto file = std::make_unique<MappedFile>(root, "key", content.size(), true);
    if (!file->complete()) {
      std::ranges::copy(content, file->memory().get());
      file->Complete();
    }
    return file;
  };
  const int reader = open((root + "/key.params").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  Check(reader >= 0 && flock(reader, LOCK_SH) == 0, "a reader");
  auto first = std::async(std::launch::async, started);
  auto second = std::async(std::launch::async, started);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  close(reader);
  const auto one = first.get(), other = second.get();
  for (const auto& memory : {one->memory(), other->memory()}) {
    Check(std::string(memory.get(), content.size()) == content, "the content of both");
  }
  std::filesystem::remove_all(root);
}

void RequestsBesideDefaults() {
  Sampling defaults;
  defaults.stop = {"END"};
  defaults.logit_bias = {{1, 2.0}};
  const auto read = [&](const char* body) {
    return ParseApiRequest(ApiKind::kText, body, defaults).sampling;
  };
  const Sampling absent = read(R"({"prompt": "a"})");
  Check(absent.stop == defaults.stop && absent.logit_bias == defaults.logit_bias,
        "the server's values of fields that are absent");
  const Sampling own = read(R"({"prompt": "a", "stop": "x", "logit_bias": {"3": 1}})");
  Check(own.stop == std::vector<std::string>{"x"}, "a request's stop alone");
  Check(own.logit_bias == std::map<int32_t, double>{{3, 1.0}}, "a request's logit_bias alone");
}

void WaitsOfWorkers() {
  const char* rounds = "TVM_THREAD_POOL_SPIN_COUNT";
  unsetenv(rounds);
  SetThreads(1);
  const std::string busy = getenv(rounds);
  SetThreads(AllowedCpus() + 1);
  Check(busy != "0" && getenv(rounds) == std::string("0"),
        "more threads than CPUs do not wait busily");
  SetThreads(AllowedCpus());
  Check(getenv(rounds) == busy, "as many threads as CPUs wait busily");
  setenv(rounds, "7", 1);
  SetThreads(AllowedCpus() + 1);
  Check(getenv(rounds) == std::string("7"), "the user's choice is kept");
}

const std::map<std::string, void (*)()> kChecks = {
    {"memory-of-groups", MemoryOfGroups},
    {"utf8", Utf8},
    {"md5", Digest},
    {"json", JsonText},
    {"earlier-calls", EarlierCalls},
    {"unicode", Characters},
    {"schema", Schemas},
    {"answers", Answers},
    {"huge-pages", BlocksOfArena},
    {"memory-nodes", Nodes},
    {"word-wrap", Wrapping},
    {"history-search", HistorySearch},
    {"first-starts", FirstStarts},
    {"defaults", RequestsBesideDefaults},
    {"waits-of-workers", WaitsOfWorkers},
};

}  // namespace

int main(int argc, char** argv) {
  const auto found = kChecks.find(argc > 1 ? argv[1] : "");
  if (found == kChecks.end()) {
    for (const auto& [name, check] : kChecks) std::cout << name << "\n";
    return argc > 1 ? 2 : 0;
  }
  try {
    found->second();
  } catch (const std::exception& error) {
    std::cerr << argv[1] << ": " << error.what() << "\n";
    return 1;
  }
  return 0;
}
