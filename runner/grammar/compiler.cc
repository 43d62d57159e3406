// SPDX-License-Identifier: Apache-2.0
#include "grammar/compiler.h"

#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <utility>

#include "input/json.h"
#include "input/utf8.h"

namespace xgrammar {

// XGrammar's own hooks for its messages; it is compiled with XGRAMMAR_LOG_CUSTOMIZE.
[[noreturn]] void LogFatalImpl(const std::string& file, int line, const std::string& message);
void LogMessageImpl(const std::string& file, int line, int level, const std::string& message);
// XGrammar's caches name its reader of Lark grammars, which is not compiled: no request has one.
[[noreturn]] Grammar LarkToGrammar(const std::string& text,
                                   const std::optional<TokenizerInfo>& tokenizer,
                                   const std::vector<NamedGrammar>& named);

namespace {

constexpr int kWarning = 2;
// The first warning on this thread, where one is awaited.
thread_local std::optional<std::string>* warning = nullptr;

}  // namespace

void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  if (level >= kWarning && warning != nullptr && !*warning) *warning = message;
}

Grammar LarkToGrammar(const std::string&, const std::optional<TokenizerInfo>&,
                      const std::vector<NamedGrammar>&) {
  throw std::logic_error("Lark grammars are not supported");
}

}  // namespace xgrammar

namespace rvv_runner {
namespace {

constexpr int64_t kCacheBytes = int64_t{64} << 20;
constexpr int kThreads = 1;      // the others compute answers
constexpr int kMostBlanks = 16;  // in a row: a model must not write blanks for ever

// Collects XGrammar's warnings: each says that it ignores a part of a schema.
class Warnings {
 public:
  Warnings() { xgrammar::warning = &first_; }
  ~Warnings() { xgrammar::warning = nullptr; }
  const std::optional<std::string>& first() const { return first_; }

 private:
  std::optional<std::string> first_;
};

// JSON has line ends between its parts, and no other control character outside of escapes.
// XGrammar would allow some in strings of bounded length.
bool HasControls(std::string_view bytes) {
  return std::any_of(bytes.begin(), bytes.end(),
                     [](unsigned char c) { return c < 0x20 && c != '\n' && c != '\r'; });
}

// True if the text is UTF-8, apart from a character at its end that may go on in `rest`.
bool IsUtf8SoFar(std::string_view text, std::string_view* rest) {
  for (size_t at = 0; at < text.size();) {
    const Decoded decoded = DecodeAt(text, at);
    if (!decoded.whole) {
      *rest = text.substr(at);
      return decoded.open;
    }
    at += decoded.length;
  }
  *rest = {};
  return true;
}

}  // namespace

// The tokens of a model as the grammars see them.
class GrammarCompiler::Vocabulary {
 public:
  Vocabulary(const Tokenizer& tokenizer, int64_t size)
      : tokenizer_(tokenizer),
        utf8_(static_cast<size_t>(xgrammar::GetBitmaskSize(static_cast<int>(size)))),
        compiler_(Read(size), kThreads, true, kCacheBytes) {}

  xgrammar::GrammarCompiler& compiler() { return compiler_; }
  std::string_view Bytes(int32_t token) const { return tokenizer_.Bytes(token); }
  // Bits of the tokens that may begin a character or follow a whole one.
  const std::vector<uint32_t>& utf8() const { return utf8_; }

 private:
  xgrammar::TokenizerInfo Read(int64_t size) {
    std::vector<std::string> tokens;
    for (size_t i = 0; i < tokenizer_.size(); ++i) {
      const std::string_view bytes = Bytes(static_cast<int32_t>(i));
      std::string_view rest;
      if (IsUtf8SoFar(bytes, &rest)) utf8_[i / 32] |= uint32_t{1} << (i % 32);
      tokens.emplace_back(HasControls(bytes) ? std::string_view() : bytes);
    }
    return xgrammar::TokenizerInfo(tokens, xgrammar::VocabType::RAW, static_cast<int>(size),
                                   tokenizer_.stop());
  }

  const Tokenizer& tokenizer_;
  std::vector<uint32_t> utf8_;
  xgrammar::GrammarCompiler compiler_;
};

class GrammarCompiler::Compiled : public Grammar, public std::enable_shared_from_this<Compiled> {
 public:
  Compiled(std::shared_ptr<const Vocabulary> of, xgrammar::CompiledGrammar made)
      : vocabulary(std::move(of)), compiled(std::move(made)) {}
  std::unique_ptr<GrammarState> Begin() const override;

  std::shared_ptr<const Vocabulary> vocabulary;
  xgrammar::CompiledGrammar compiled;
  // The grammar begins with this text; before it comes any text, or none if `at_once` is set.
  std::string trigger = {};
  bool at_once = false;
  Thoughts thoughts = Thoughts::kNone;
};

class GrammarCompiler::Matcher : public GrammarState {
 public:
  explicit Matcher(std::shared_ptr<const Compiled> grammar)
      : grammar_(std::move(grammar)),
        stops_(!grammar_->compiled.GetTokenizerInfo().GetStopTokenIds().empty()),
        matcher_(grammar_->compiled, std::nullopt, !stops_),
        waits_(!grammar_->trigger.empty()),
        answer_(grammar_->thoughts == Thoughts::kBegun ? std::string::npos : 0),
        size_(grammar_->compiled.GetTokenizerInfo().GetVocabSize()),
        mask_(static_cast<size_t>(xgrammar::GetBitmaskSize(size_))) {}

  // Reads the tokens that may come next into the mask.
  void Fill() {
    int64_t shape = std::ssize(mask_);
    DLTensor tensor{mask_.data(), {kDLCPU, 0}, 1, {kDLInt, 32, 1}, &shape, nullptr, 0};
    std::fill(mask_.begin(), mask_.end(), 0);
    const bool some = matcher_.FillNextTokenBitmask(&tensor);
    if (!some) std::fill(mask_.begin(), mask_.end(), ~uint32_t{0});
    KeepUtf8();
  }

  // True if some token may come next.
  bool Begins() {
    Fill();
    return std::any_of(mask_.begin(), mask_.end(), [](uint32_t bits) { return bits; });
  }

  void Mask(std::vector<float>* logits) override {
    if (waits_) return;
    Fill();
    bool some = false;
    constexpr float kNever = -std::numeric_limits<float>::infinity();
    for (size_t i = 0; i < logits->size(); i += 32) {
      const uint32_t bits = i / 32 < mask_.size() ? mask_[i / 32] : 0;
      const size_t end = std::min(i + 32, logits->size());
      some = some || bits != 0;
      if (bits == ~uint32_t{0}) continue;
      for (size_t at = i; at < end; ++at) {
        if ((bits >> (at - i) & 1) == 0) (*logits)[at] = kNever;
      }
    }
    if (!some) throw RunError("no token of the model continues the answer as its schema asks");
  }

  void Accept(int32_t token) override {
    if (waits_) return Look(grammar_->vocabulary->Bytes(token));
    if (!matcher_.AcceptToken(token)) {
      throw RunError("the grammar of the answer refuses a token that it allowed");
    }
    std::string_view rest;
    open_ += grammar_->vocabulary->Bytes(token);
    IsUtf8SoFar(open_, &rest);
    open_ = std::string(rest);
  }

  bool done() const override { return matcher_.IsTerminated(); }

 private:
  // Begins the grammar where the text of an answer has its trigger. A text that goes on otherwise
  // than the grammar says remains any text.
  void Look(std::string_view bytes) {
    const std::string& trigger = grammar_->trigger;
    const size_t before = text_.size();
    text_ += bytes;
    const auto since = [&](size_t length) { return before - std::min(before, length - 1); };
    if (grammar_->thoughts == Thoughts::kMay && answer_ == 0 && text_.starts_with(kThink)) {
      answer_ = std::string::npos;
    }
    if (answer_ == std::string::npos) {
      const size_t end = text_.find(kThinkEnd, since(kThinkEnd.size()));
      if (end == std::string::npos) return;
      answer_ = end + kThinkEnd.size();
    }
    size_t from = std::max(answer_, since(trigger.size()));
    for (size_t found; (found = text_.find(trigger, from)) != std::string::npos; from = found + 1) {
      const bool allowed = !grammar_->at_once || text_.find_first_not_of(" \n", answer_) == found;
      if (!allowed || !matcher_.AcceptString(text_.substr(found))) continue;
      waits_ = false;
      return;
    }
  }

  // XGrammar counts on vocabularies without broken characters, such as surrogates.
  void KeepUtf8() {
    const auto& vocabulary = *grammar_->vocabulary;
    for (size_t word = 0; word < mask_.size(); ++word) {
      if (open_.empty()) {
        mask_[word] &= vocabulary.utf8()[word];
        continue;
      }
      for (uint32_t bits = mask_[word]; bits != 0; bits &= bits - 1) {
        const int bit = std::countr_zero(bits);
        const auto token = static_cast<int32_t>(word * 32 + static_cast<size_t>(bit));
        std::string_view rest;
        const std::string text = open_ + std::string(vocabulary.Bytes(token));
        if (!IsUtf8SoFar(text, &rest)) mask_[word] &= ~(uint32_t{1} << bit);
      }
    }
  }

  std::shared_ptr<const Compiled> grammar_;
  bool stops_;
  xgrammar::GrammarMatcher matcher_;
  bool waits_;     // for the trigger
  size_t answer_;  // its beginning in the text, behind the thoughts; npos within them
  int size_;
  std::vector<uint32_t> mask_;
  std::string text_;  // while it waits
  std::string open_;  // bytes of a character that is not complete
};

std::unique_ptr<GrammarState> GrammarCompiler::Compiled::Begin() const {
  return std::make_unique<Matcher>(shared_from_this());
}

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, int64_t vocabulary)
    : tokenizer_(tokenizer), vocabulary_(vocabulary) {}

GrammarCompiler::~GrammarCompiler() = default;

const std::shared_ptr<GrammarCompiler::Vocabulary>& GrammarCompiler::Ready() {
  std::call_once(once_, [&] { table_ = std::make_shared<Vocabulary>(tokenizer_, vocabulary_); });
  return table_;
}

namespace {

// The schema as XGrammar reads it. If XGrammar ignores a part of it, throws GrammarError, or adds its path
// to `unguided`.
OrderedJson CheckedSchema(const OrderedJson& schema, const std::string& where,
                          const std::string& type, std::vector<std::string>* unguided) {
  OrderedJson prepared = PreparedSchema(schema, where, type, unguided);
  try {
    const Warnings warnings;
    xgrammar::Grammar::FromJSONSchema(WrittenInOrder(prepared), true, std::nullopt, std::nullopt,
                                      true, kMostBlanks);
    if (!warnings.first()) return prepared;
    if (unguided == nullptr) throw GrammarError(where, "cannot be expressed: " + *warnings.first());
    unguided->push_back(where);
    return prepared;
  } catch (const GrammarError&) {
    throw;
  } catch (const std::exception& error) {
    throw GrammarError(where, std::string("cannot be expressed: ") + error.what());
  }
}

OrderedJson Constant(const std::string& text) {
  return {{"type", "const_string"}, {"value", text}};
}

OrderedJson Sequence(const std::vector<OrderedJson>& parts) {
  return {{"type", "sequence"}, {"elements", parts}};
}

OrderedJson JsonOf(const OrderedJson& schema, const std::string& where, const std::string& type,
                   std::vector<std::string>* unguided) {
  return {{"type", "json_schema"}, {"json_schema", CheckedSchema(schema, where, type, unguided)}};
}

// A call of a tool as XGrammar's structural tags describe it.
OrderedJson CallOf(const Tool& tool, const ToolFormat& format, std::vector<std::string>* unguided) {
  std::vector<OrderedJson> parts = {
      Constant(format.open + tool.name + format.middle),
      JsonOf(tool.parameters, tool.where, "object", tool.strict ? nullptr : unguided)};
  if (!format.close.empty()) parts.push_back(Constant(format.close));
  if (format.id_length > 0) {
    const std::string pattern = "[a-zA-Z0-9]{" + std::to_string(format.id_length) + "}";
    parts.push_back({{"type", "regex"}, {"pattern", pattern}});
    parts.push_back(Constant(format.after_id));
  }
  return Sequence(parts);
}

OrderedJson CallsOf(const std::vector<Tool>& tools, const ToolFormat& format, int64_t most,
                    std::vector<std::string>* unguided) {
  std::vector<OrderedJson> choices;
  for (const Tool& tool : tools) choices.push_back(CallOf(tool, format, unguided));
  const OrderedJson call = {{"type", "or"}, {"elements", choices}};
  std::vector<OrderedJson> parts;
  if (!format.begin.empty()) parts.push_back(Constant(format.begin));
  parts.push_back(call);
  if (most > 1) {
    parts.push_back({{"type", "repeat"},
                     {"min", 0},
                     {"max", most - 1},
                     {"content", Sequence({Constant(format.between), call})}});
  }
  if (!format.end.empty()) parts.push_back(Constant(format.end));
  return Sequence(parts);
}

}  // namespace

std::shared_ptr<const Grammar> GrammarCompiler::OfSchema(const OrderedJson& schema,
                                                         const std::string& where,
                                                         std::vector<std::string>* unguided) {
  const OrderedJson prepared = CheckedSchema(schema, where, "", unguided);
  const auto& table = Ready();
  try {
    // CompileGrammar would write the grammar as text and read it back: it writes U+00DF as \xdf, and
    // reads all hexadecimal digits that follow.
    auto made = std::make_shared<Compiled>(
        table, table->compiler().CompileJSONSchema(WrittenInOrder(prepared), true, std::nullopt,
                                                   std::nullopt, true, kMostBlanks));
    if (!Matcher(made).Begins()) throw GrammarError(where, "allows no answer");
    return made;
  } catch (const GrammarError&) {
    throw;
  } catch (const std::exception& error) {
    throw GrammarError(where, std::string("cannot be expressed: ") + error.what());
  }
}

std::shared_ptr<const Grammar> GrammarCompiler::OfCalls(const std::vector<Tool>& tools,
                                                        int64_t most, const Otherwise& otherwise,
                                                        std::vector<std::string>* unguided) {
  if (!tokenizer_.calls()) {
    throw ToolsError("tools",
                     "cannot be called: the model's chat template has no calls; ask for JSON with "
                     "response_format, or use a model for tools");
  }
  const ToolFormat& format = *tokenizer_.calls();
  OrderedJson form = CallsOf(tools, format, format.parallel ? most : 1, unguided);
  const bool channels = otherwise.thoughts == Thoughts::kChannels;
  if (otherwise.schema != nullptr) {
    if (format.begin.empty() && !channels) {
      throw ToolsError("tools", "cannot be called by this model beside a format of its answer: " +
                                    std::string("its calls begin as JSON does"));
    }
    OrderedJson other =
        JsonOf(*otherwise.schema, otherwise.where, "", otherwise.strict ? nullptr : unguided);
    if (channels) other = Sequence({Constant(std::string(kFinal)), other});
    form = {{"type", "or"}, {"elements", {form, other}}};
  }
  const std::string tag = WrittenInOrder({{"type", "structural_tag"}, {"format", form}});
  const auto& table = Ready();
  try {
    auto made = std::make_shared<Compiled>(table, table->compiler().CompileStructuralTag(tag));
    if (otherwise.any_text) {
      made->trigger = format.trigger();
      made->at_once = format.begin.empty() && !channels;
      made->thoughts = otherwise.thoughts;
    }
    return made;
  } catch (const std::exception& error) {
    throw GrammarError("tools", std::string("cannot be expressed: ") + error.what());
  }
}

}  // namespace rvv_runner
