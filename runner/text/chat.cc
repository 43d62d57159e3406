// SPDX-License-Identifier: Apache-2.0
#include "text/chat.h"

#include <jinja/parser.h>
#include <jinja/runtime.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "input/errors.h"
#include "input/json.h"
#include "input/utf8.h"
#include "text/unicode.h"

namespace rvv_runner {
namespace {

bool IsBlank(uint32_t code) { return IsSpace(code) || (code >= 0x1C && code <= 0x1F); }

// The engine converts each number to a whole one of 64 bits, too.
void CheckSize(const OrderedJson& number) {
  if (std::abs(number.get<double>()) < 0x1p63) return;
  throw InputError("the number " + WrittenInOrder(number) + " is too large for a chat template");
}

jinja::value Value(const OrderedJson& json) {
  using jinja::mk_val;
  switch (json.type()) {
    case OrderedJson::value_t::boolean: return mk_val<jinja::value_bool>(json.get<bool>());
    case OrderedJson::value_t::number_integer:
    case OrderedJson::value_t::number_unsigned:
      CheckSize(json);
      return mk_val<jinja::value_int>(json.get<int64_t>());
    case OrderedJson::value_t::number_float:
      CheckSize(json);
      return mk_val<jinja::value_float>(json.get<double>());
    case OrderedJson::value_t::string: return mk_val<jinja::value_string>(json.get<std::string>());
    case OrderedJson::value_t::array: {
      const auto list = mk_val<jinja::value_array>();
      for (const OrderedJson& item : json) list->push_back(Value(item));
      return list;
    }
    case OrderedJson::value_t::object: {
      const auto table = mk_val<jinja::value_object>();
      for (const auto& [key, item] : json.items()) table->insert(key, Value(item));
      return table;
    }
    default: return mk_val<jinja::value_none>();
  }
}

// Throws InputError for more parts inside each other, or in a row in a tag, than the engine, which calls
// itself for each, has room for on its stack.
void CheckDepth(const std::vector<jinja::token>& tokens) {
  using Token = jinja::token;
  constexpr size_t kDeepest = 100, kLongestTag = 500;  // tokens
  const std::set<std::string> begins = {"if", "for", "macro", "call", "filter", "set"};
  size_t tag = 0;              // its beginning
  size_t depth = 0;            // of blocks
  size_t brackets = 0;         // that are open in the tag
  std::vector<size_t> blocks;  // the depth outside of each that is open
  bool assigns = false;        // in a tag that may set a name without a block
  const auto end_block = [&] {
    if (blocks.empty()) return;
    depth = blocks.back();
    blocks.pop_back();
  };
  for (size_t at = 0; at < tokens.size(); ++at) {
    const std::string& word = tokens[at].value;
    switch (tokens[at].t) {
      case Token::open_statement:
      case Token::open_expression:
      case Token::text:
      case Token::comment:
        tag = at;
        brackets = 0;
        assigns = false;
        break;
      case Token::identifier:
        if (at != tag + 1 || tokens[tag].t != Token::open_statement) break;
        assigns = word == "set";
        if (begins.contains(word)) blocks.push_back(depth++);
        if (word == "elif") ++depth;
        if (word.starts_with("end") && begins.contains(word.substr(3))) end_block();
        break;
      case Token::equals:
        if (assigns && brackets == 0) end_block();
        assigns = assigns && brackets > 0;
        break;
      case Token::open_paren:
      case Token::open_square_bracket:
      case Token::open_curly_bracket: ++brackets; break;
      case Token::close_paren:
      case Token::close_square_bracket:
      case Token::close_curly_bracket: brackets -= brackets > 0; break;
      default: break;
    }
    if (depth + brackets > kDeepest || at - tag > kLongestTag) {
      throw InputError("it has more than " + std::to_string(kDeepest) +
                       " parts inside each other, or " + std::to_string(kLongestTag) +
                       " words and signs in one tag");
    }
  }
}

std::string FirstLine(const std::string& message) { return message.substr(0, message.find('\n')); }

// What follows the last `mark` in the engine's message, which quotes the template before it; the
// whole first line without one.
std::string After(const std::string& message, std::string_view mark) {
  const size_t found = message.rfind(mark);
  return FirstLine(found == std::string::npos ? message : message.substr(found + mark.size()));
}

// A message with its content as a list of parts.
OrderedJson InParts(OrderedJson message) {
  const auto content = message.find("content");
  if (content != message.end() && content->is_string()) {
    *content = OrderedJson::array({{{"type", "text"}, {"text", *content}}});
  }
  return message;
}

// The engine puts this before the words of a template's raise_exception.
constexpr std::string_view kRaised = "Jinja Exception: ";

// Marks the end of an answer that is continued: its own text may stand behind it once more, as in <|im_end|>.
constexpr std::string_view kHere = "\x01mlc-rvv\x01";

}  // namespace

std::string_view Stripped(std::string_view text) {
  size_t first = text.size();
  size_t end = 0;
  for (size_t at = 0; at < text.size();) {
    const Decoded decoded = DecodeAt(text, at);
    if (!IsBlank(decoded.code)) {
      first = std::min(first, at);
      end = at + decoded.length;
    }
    at += decoded.length;
  }
  return first < end ? text.substr(first, end - first) : std::string_view();
}

ChatInput ChatInputOf(std::span<const Message> messages) {
  ChatInput conversation{OrderedJson::array(), nullptr};
  for (const Message& message : messages) {
    const char* role = message.role == Message::Role::kSystem ? "system"
                       : message.role == Message::Role::kUser ? "user"
                                                              : "assistant";
    conversation.messages.push_back({{"role", role}, {"content", message.content}});
  }
  return conversation;
}

struct ChatTemplate::Program {
  jinja::program code;
  std::string source;
  OrderedJson variables;
  bool reads_parts = false;
};

ChatTemplate::ChatTemplate(const std::string& source, const OrderedJson& variables) {
  try {
    const auto words = jinja::lexer().tokenize(source);
    CheckDepth(words.tokens);
    auto code = jinja::parse_from_tokens(words);
    program_ = std::make_shared<Program>(Program{std::move(code), source, variables});
  } catch (const std::exception& error) {
    throw InputError("the model's chat template is malformed: " + FirstLine(error.what()));
  }
  // It reads parts if a text is lost that is not in a part.
  const std::string word = "mlc-rvv";
  const auto shows = [&](const OrderedJson& message) {
    try {
      return Rendered(OrderedJson::array({message}), nullptr, true).find(word) != std::string::npos;
    } catch (const InputError&) {
      return false;
    }
  };
  const OrderedJson plain = {{"role", "user"}, {"content", word}};
  program_->reads_parts = !shows(plain) && shows(InParts(plain));
}

bool ChatTemplate::reads_parts() const { return known() && program_->reads_parts; }

bool ChatTemplate::thinks() const {
  return known() && program_->source.find(kThinkEnd) != std::string::npos;
}

bool ChatTemplate::has_channels() const {
  return known() && program_->source.find(kChannel) != std::string::npos;
}

std::string ChatTemplate::Rendered(const OrderedJson& messages, const OrderedJson& tools,
                                   bool prompts) const {
  jinja::context context(program_->source);
  for (const auto& [name, value] : program_->variables.items()) {
    context.set_val(name, Value(value));
  }
  context.set_val("messages", Value(messages));
  if (!tools.empty()) context.set_val("tools", Value(tools));
  context.set_val("add_generation_prompt", jinja::mk_val<jinja::value_bool>(prompts));
  try {
    const auto results = jinja::runtime(context).execute(program_->code);
    return jinja::runtime::gather_string_parts(results)->as_string().str();
  } catch (const std::exception& error) {
    const std::string message = error.what();
    if (message.find(kRaised) != std::string::npos) {
      throw InputError("the model's chat template refuses the messages: " +
                       After(message, kRaised));
    }
    throw InputError("the model's chat template fails: " + After(message, "Error: "));
  }
}

std::string ChatTemplate::Text(const ChatInput& conversation) const {
  if (!known()) throw InputError("this model has no chat template; use --raw");
  OrderedJson messages = conversation.messages;
  const bool continues = conversation.continues();
  std::string said;
  if (continues) {
    said = messages.back().value("content", "");
    messages.back()["content"] = said + std::string(kHere);
  }
  for (OrderedJson& message : messages) {
    if (reads_parts()) {
      message = InParts(std::move(message));
    } else if (message.contains("content") && message["content"].is_array()) {
      throw InputError("the model's chat template reads no pictures");
    }
  }
  std::string text = Rendered(messages, conversation.tools, !continues);
  if (!continues) return text;
  const size_t found = text.rfind(kHere);
  const std::string_view end = Stripped(said);
  const std::string_view shown = Stripped(std::string_view(text).substr(0, found));
  if (found == std::string::npos || end.empty() || !shown.ends_with(end)) {
    throw InputError("the model's chat template does not let an answer be continued");
  }
  return text.substr(0, shown.data() + shown.size() - text.data());
}

}  // namespace rvv_runner
