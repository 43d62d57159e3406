// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_file.h"

#include <array>
#include <cstring>
#include <iterator>
#include <numeric>

#include "input/errors.h"
#include "input/utf8.h"

namespace rvv_runner {
namespace {

constexpr std::string_view kMagic = "RVVTOKEN";
constexpr uint32_t kVersion = 4;
constexpr uint32_t kWholeWords = 1;
constexpr uint32_t kHasChat = 2;
constexpr uint32_t kNfc = 8;
constexpr uint32_t kByCharacter = 128;
constexpr uint32_t kDropsBlank = 256;
constexpr uint32_t kPrefixShift = 9;  // two bits
constexpr uint32_t kFlags = 0x78B;
constexpr size_t kTexts = 4;
constexpr uint8_t kKinds =
    kSpecial | kMarker | kLateMarker | kWord | kTakesLeft | kTakesRight | kSpelled;

struct Counts {
  uint32_t tokens, merges, token_bytes, stop, first;
  std::array<uint32_t, kTexts> texts;

  // Bytes that follow the counts. Sums of products of 32-bit numbers: no 64-bit overflow.
  uint64_t Bytes() const {
    const uint64_t numbers = uint64_t{tokens} + 256 + uint64_t{4} * merges + stop + first;
    return 4 * numbers + tokens + token_bytes +
           std::accumulate(texts.begin(), texts.end(), uint64_t{0});
  }
};

class Reader {
 public:
  Reader(std::string_view data, const std::string& where) : data_(data), where_(where) {}

  [[noreturn]] void Fail(const std::string& what) const { throw InputError(where_ + ": " + what); }

  std::string_view rest() const { return data_; }
  const std::string& where() const { return where_; }

  std::string_view Bytes(size_t count) {
    if (count > data_.size()) Fail("it ends too early");
    const std::string_view taken = data_.substr(0, count);
    data_.remove_prefix(count);
    return taken;
  }

  uint32_t Number() {
    const std::string_view four = Bytes(4);
    uint32_t value = 0;
    for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(four[i]);
    return value;
  }

  // A token's id, below `count`.
  uint32_t Id(uint32_t count) {
    const uint32_t id = Number();
    if (id >= count) Fail("token " + std::to_string(id) + " of " + std::to_string(count));
    return id;
  }

 private:
  std::string_view data_;
  const std::string& where_;
};

Counts ReadCounts(Reader* reader) {
  Counts counts{};
  for (uint32_t* field :
       {&counts.tokens, &counts.merges, &counts.token_bytes, &counts.stop, &counts.first}) {
    *field = reader->Number();
  }
  for (uint32_t& bytes : counts.texts) bytes = reader->Number();
  if (counts.Bytes() != reader->rest().size()) {
    reader->Fail("its counts do not match its size: the file is damaged");
  }
  return counts;
}

void ReadMerges(Reader* reader, const Counts& counts, TokenizerFile* file) {
  uint64_t before = 0;
  for (uint32_t i = 0; i < counts.merges; ++i) {
    Merge merge{};
    merge.left = reader->Id(counts.tokens);
    merge.right = reader->Id(counts.tokens);
    merge.merged = reader->Id(counts.tokens);
    merge.rank = reader->Number();
    const uint64_t pair = uint64_t{merge.left} << 32 | merge.right;
    if (i > 0 && pair <= before) reader->Fail("its merges are not in order");
    before = pair;
    file->merges.push_back(merge);
  }
}

void ReadTokens(Reader* reader, const Counts& counts, const std::vector<uint32_t>& ends,
                TokenizerFile* file) {
  const std::string_view kinds = reader->Bytes(counts.tokens);
  const std::string_view bytes = reader->Bytes(counts.token_bytes);
  uint32_t start = 0;
  for (uint32_t i = 0; i < counts.tokens; ++i) {
    const auto kind = static_cast<uint8_t>(kinds[i]);
    if (ends[i] < start || ends[i] > bytes.size()) reader->Fail("its tokens are not in order");
    if ((kind & ~kKinds) != 0) reader->Fail("a token has an unknown kind");
    if (ends[i] == start && (kind & (kMarker | kLateMarker)) != 0) {
      reader->Fail("a marker is empty");
    }
    file->tokens.emplace_back(bytes.substr(start, ends[i] - start));
    file->kinds.push_back(kind);
    start = ends[i];
  }
  if (start != bytes.size()) reader->Fail("some bytes belong to no token");
}

// Checks that each merge gives the token that its parts spell, and a byte's token that byte.
void CheckSpelling(const Reader& reader, const TokenizerFile& file) {
  for (const Merge& merge : file.merges) {
    const std::string& left = file.tokens[merge.left];
    const std::string& right = file.tokens[merge.right];
    const std::string& merged = file.tokens[merge.merged];
    const bool same = !left.empty() && !right.empty() &&
                      merged.size() == left.size() + right.size() && merged.starts_with(left) &&
                      merged.ends_with(right);
    if (!same) reader.Fail("a merge does not spell its token");
  }
  for (size_t byte = 0; byte < file.bytes.size(); ++byte) {
    if (file.bytes[byte] == kNoToken) continue;
    const std::string& token = file.tokens[file.bytes[byte]];
    const bool same = file.by_character ? ByteOf(token) == static_cast<unsigned char>(byte)
                                        : token == std::string(1, static_cast<char>(byte));
    if (!same) {
      reader.Fail("the token of a byte is not that byte");
    }
  }
}

void ReadTexts(Reader* reader, const Counts& counts, bool known, TokenizerFile* file) {
  std::array<std::string, kTexts> texts;
  for (size_t i = 0; i < kTexts; ++i) {
    texts[i] = reader->Bytes(counts.texts[i]);
    if (FirstBroken(texts[i])) reader->Fail("one of its texts is not UTF-8");
  }
  if (!texts[3].empty()) {
    const std::string where = reader->where() + ", word pieces";
    file->pieces = ReadWordPieces(ParseJson(texts[3], where), counts.tokens, where);
  }
  if (!known) return;
  try {
    file->chat = ChatTemplate(texts[0], ParseJson(texts[1], "the chat template's variables"));
    const Json calls = ParseJson(texts[2], "the format of its calls");
    if (!calls.is_null()) file->calls = ReadToolFormat(calls);
  } catch (const InputError& error) {
    reader->Fail(error.what());
  } catch (const Json::exception&) {
    reader->Fail("the format of its calls lacks a field, or one has another type");
  }
}

}  // namespace

std::optional<unsigned char> ByteOf(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned value = 0;
  for (const char c : token.substr(3, 2)) {
    const auto digit = std::string_view("0123456789ABCDEF").find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    value = value << 4 | static_cast<unsigned>(digit);
  }
  return static_cast<unsigned char>(value);
}

uint32_t Crc32(std::string_view data) {
  static const auto kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < table.size(); ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0xEDB88320 : 0);
      table[i] = value;
    }
    return table;
  }();
  uint32_t crc = 0xFFFFFFFF;
  for (const char c : data) crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  return ~crc;
}

TokenizerFile ParseTokenizerFile(std::string_view data, const std::string& where) {
  Reader reader(data, where);
  if (!data.starts_with(kMagic)) reader.Fail("not a tokenizer file; compiling the model makes one");
  reader.Bytes(kMagic.size());
  const uint32_t version = reader.Number();
  if (version != kVersion) {
    reader.Fail("version " + std::to_string(version) + " of the format; this program reads " +
                std::to_string(kVersion));
  }
  const uint32_t crc = reader.Number();
  if (crc != Crc32(reader.rest())) reader.Fail("its checksum is wrong: the file is damaged");
  TokenizerFile file;
  const uint32_t rule = reader.Number();
  const uint32_t flags = reader.Number();
  if (!IsWordRule(rule)) reader.Fail("unknown rule for words: " + std::to_string(rule));
  if ((flags & ~kFlags) != 0) reader.Fail("unknown flags");
  file.rule = static_cast<WordRule>(rule);
  file.whole_words = flags & kWholeWords;
  file.nfc = flags & kNfc;
  file.by_character = flags & kByCharacter;
  file.drops_blank = flags & kDropsBlank;
  file.prefix_blank = static_cast<Prefix>(flags >> kPrefixShift & 3);
  const Counts counts = ReadCounts(&reader);
  std::vector<uint32_t> ends;
  for (uint32_t i = 0; i < counts.tokens; ++i) ends.push_back(reader.Number());
  for (uint32_t& id : file.bytes) {
    id = reader.Number();
    if (id != kNoToken && id >= counts.tokens) reader.Fail("the token of a byte is out of range");
  }
  ReadMerges(&reader, counts, &file);
  for (uint32_t i = 0; i < counts.stop; ++i) {
    file.stop.push_back(static_cast<int32_t>(reader.Id(counts.tokens)));
  }
  for (uint32_t i = 0; i < counts.first; ++i) {
    file.first.push_back(static_cast<int32_t>(reader.Id(counts.tokens)));
  }
  ReadTokens(&reader, counts, ends, &file);
  CheckSpelling(reader, file);
  ReadTexts(&reader, counts, flags & kHasChat, &file);
  return file;
}

}  // namespace rvv_runner
