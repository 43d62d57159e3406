// SPDX-License-Identifier: Apache-2.0
#include "program/keys.h"

#include <map>
#include <utility>

#include "input/utf8.h"

namespace rvv_runner {
namespace {

using Kind = Key::Kind;

constexpr char kEscape = '\x1B';
constexpr std::string_view kPasteBegin = "\x1B[200~";
constexpr std::string_view kPasteEnd = "\x1B[201~";

const std::map<unsigned char, Kind>& Controls() {
  static const std::map<unsigned char, Kind> controls = {
      {'\r', Kind::kEnter},       {'\n', Kind::kEnter},  // from programs that drive a terminal
      {0x01, Kind::kHome},        {0x02, Kind::kLeft},        {0x03, Kind::kInterrupt},
      {0x04, Kind::kEndOfInput},  {0x05, Kind::kEnd},         {0x06, Kind::kRight},
      {0x08, Kind::kBackspace},   {0x0B, Kind::kEraseBehind}, {0x0C, Kind::kRedraw},
      {0x0E, Kind::kDown},        {0x10, Kind::kUp},          {0x15, Kind::kEraseBefore},
      {0x17, Kind::kEraseWord},   {0x7F, Kind::kBackspace},   {0x12, Kind::kSearch},
      {0x07, Kind::kLeaveSearch}, {0x1A, Kind::kSuspend},
  };
  return controls;
}

// By what follows the escape character.
const std::map<std::string_view, Kind>& Sequences() {
  static const std::map<std::string_view, Kind> sequences = {
      {"[A", Kind::kUp},           {"OA", Kind::kUp},          {"[B", Kind::kDown},
      {"OB", Kind::kDown},         {"[C", Kind::kRight},       {"OC", Kind::kRight},
      {"[D", Kind::kLeft},         {"OD", Kind::kLeft},        {"[H", Kind::kHome},
      {"OH", Kind::kHome},         {"[1~", Kind::kHome},       {"[7~", Kind::kHome},
      {"[F", Kind::kEnd},          {"OF", Kind::kEnd},         {"[4~", Kind::kEnd},
      {"[8~", Kind::kEnd},         {"[3~", Kind::kDelete},     {"[1;5C", Kind::kWordRight},
      {"[1;3C", Kind::kWordRight}, {"f", Kind::kWordRight},    {"[1;5D", Kind::kWordLeft},
      {"[1;3D", Kind::kWordLeft},  {"b", Kind::kWordLeft},     {"\r", Kind::kNewLine},
      {"\n", Kind::kNewLine},      {"\x7F", Kind::kEraseWord},
  };
  return sequences;
}

// Bytes of the sequence behind an escape character; 0 if they are not all there.
size_t SequenceLength(std::string_view rest) {
  if (rest.empty()) return 0;
  if (rest[0] == 'O') return rest.size() < 2 ? 0 : 2;
  if (rest[0] != '[') return 1;
  // ECMA-48, 5.4: parameters, and a final byte.
  for (size_t at = 1; at < rest.size(); ++at) {
    if (rest[at] >= 0x40 && rest[at] <= 0x7E) return at + 1;
  }
  return 0;
}

// Terminals send the end of a pasted line as Enter sends it.
std::string Pasted(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\r' && at + 1 < text.size() && text[at + 1] == '\n') continue;
    out += text[at] == '\r' ? '\n' : text[at];
  }
  return out;
}

bool TakeEscape(std::string* bytes, Key* key) {
  const std::string_view all = *bytes;
  if (all.starts_with(kPasteBegin)) {
    const size_t end = all.find(kPasteEnd);
    if (end == std::string::npos) return false;
    *key = {Kind::kText, Pasted(all.substr(kPasteBegin.size(), end - kPasteBegin.size()))};
    bytes->erase(0, end + kPasteEnd.size());
    return true;
  }
  const size_t length = SequenceLength(all.substr(1));
  if (length == 0) return false;
  const auto found = Sequences().find(all.substr(1, length));
  *key = {found == Sequences().end() ? Kind::kIgnored : found->second};
  bytes->erase(0, 1 + length);
  return true;
}

}  // namespace

bool TakeKey(std::string* bytes, Key* key) {
  if (bytes->empty()) return false;
  if (bytes->front() == kEscape) return TakeEscape(bytes, key);
  const auto control = Controls().find(static_cast<unsigned char>(bytes->front()));
  if (control != Controls().end()) {
    *key = {control->second};
    bytes->erase(0, 1);
    return true;
  }
  const Decoded decoded = DecodeAt(*bytes, 0);
  if (decoded.open) return false;
  const bool shown = decoded.whole && (decoded.code >= ' ' || decoded.code == '\t');
  *key = shown ? Key{Kind::kText, bytes->substr(0, decoded.length)} : Key{};
  bytes->erase(0, decoded.length);
  return true;
}

}  // namespace rvv_runner
