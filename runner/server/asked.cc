// SPDX-License-Identifier: Apache-2.0
#include "server/asked.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "input/utf8.h"

namespace rvv_runner {
namespace {

// A prompt as tokens, and as the text that an answer may repeat.
struct Prompt {
  std::vector<int32_t> tokens;
  Echo echo;
  std::vector<PromptPicture> pictures = {};
};

// Decodes a picture's part, and takes its bytes out of it.
std::shared_ptr<const PreparedPicture> TakePicture(const Served& served, OrderedJson* part) {
  const std::string field = part->at("field");
  if (served.pictures == nullptr) Refuse(field, kOnlyText);
  try {
    const std::string file = DecodeBase64(part->at("base64").get_ref<const std::string&>());
    *part = {{"type", "image"}};
    return std::make_shared<const PreparedPicture>(Prepare(DecodePicture(file), *served.pictures));
  } catch (const InputError& error) {
    Refuse(field, error.what());
  }
}

// Gives calls, and their results, ids of the length that the model's template accepts, in place of
// other ids, which are those of this server, of other models, or missing.
void FitIds(const Tokenizer& tokenizer, OrderedJson* messages) {
  const auto& calls = tokenizer.calls();
  if (!calls || calls->id_length <= 0) return;
  const auto length = static_cast<size_t>(calls->id_length);
  std::map<std::string, std::string> fitted;
  std::vector<std::string> open;  // calls without a result
  const auto fit = [&](const std::string& id) {
    const bool plain = std::ranges::all_of(id, [](unsigned char c) { return std::isalnum(c); });
    if (id.size() == length && plain) return id;
    const std::string number = std::to_string(fitted.size());
    const std::string zeros(length - std::min(length, number.size()), '0');
    return fitted.try_emplace(id, zeros + number).first->second;
  };
  for (OrderedJson& message : *messages) {
    if (message.contains("tool_calls")) {
      open.clear();
      for (OrderedJson& call : message["tool_calls"]) {
        const std::string missing = "\n" + std::to_string(fitted.size());  // unlike a client's
        call["id"] = open.emplace_back(fit(call.value("id", missing)));
      }
    } else if (message["role"] == "tool") {
      const std::string next = open.empty() ? "" : open.front();
      const std::string id = fit(message.value("tool_call_id", next));
      message["tool_call_id"] = id;
      std::erase(open, id);
    }
  }
}

Thoughts ThoughtsOf(const ChatTemplate& chat, const ChatInput& input) {
  if (chat.has_channels()) return Thoughts::kChannels;
  if (!chat.thinks()) return Thoughts::kNone;
  const bool begun = Stripped(chat.Text(input)).ends_with(kThink);
  return begun ? Thoughts::kBegun : Thoughts::kMay;
}

std::vector<Prompt> PromptsOf(const Served& served, Asked* asked) {
  const Tokenizer& tokenizer = *served.tokenizer;
  const auto most = static_cast<size_t>(served.context);
  const ApiRequest& api = asked->api;
  std::vector<Prompt> prompts;
  const auto add = [&](Encoded encoded, Echo echo) {
    asked->dropped += encoded.dropped;
    // SentencePiece's blank before a text.
    size_t characters = 0;
    for (const int32_t id : std::span(encoded.ids).subspan(echo.hidden)) {
      characters += Characters(tokenizer.Visible(id));
    }
    echo.added = characters == Characters(echo.text) + 1;
    prompts.push_back({std::move(encoded.ids), std::move(echo)});
  };
  if (api.chat()) {
    FitIds(tokenizer, &asked->api.chat_input.messages);
    asked->thoughts = ThoughtsOf(tokenizer.chat(), api.chat_input);
    std::vector<PromptPicture> pictures;
    add(EncodeShown(served, api.chat_input, api.input(), most, &pictures), {});
    prompts.back().pictures = std::move(pictures);
  }
  for (const ApiPrompt& prompt : api.prompts) {
    if (const auto* text = std::get_if<std::string>(&prompt)) {
      add(EncodePrompt(tokenizer, *text, true, "prompt", most), {*text, tokenizer.first().size()});
    } else {
      const auto& ids = std::get<std::vector<int32_t>>(prompt);
      add({ids, 0}, {api.echo ? TextOf(tokenizer, ids) : "", 0});
    }
  }
  return prompts;
}

std::shared_ptr<const Grammar> GrammarOf(const Served& served, const Form& form, Thoughts thoughts,
                                         std::vector<std::string>* unguided) {
  if (served.strict) unguided = nullptr;
  if (!form.tools.empty()) {
    const int64_t calls = form.parallel ? kMostCalls : 1;
    GrammarCompiler::Otherwise otherwise;
    otherwise.any_text = !form.must_call && !form.schema;
    if (!form.must_call && form.schema) otherwise.schema = &*form.schema;
    otherwise.where = form.schema_field;
    otherwise.thoughts = thoughts;
    otherwise.strict = form.strict;
    return served.grammars->OfCalls(form.tools, calls, otherwise, unguided);
  }
  if (!form.schema) return nullptr;
  return served.grammars->OfSchema(*form.schema, form.schema_field,
                                   form.strict ? nullptr : unguided);
}

}  // namespace

Encoded EncodeShown(const Served& served, ChatInput conversation, const std::string& input,
                    size_t most, std::vector<PromptPicture>* pictures) {
  FitIds(*served.tokenizer, &conversation.messages);
  std::vector<std::shared_ptr<const PreparedPicture>> shown;
  for (OrderedJson& message : conversation.messages) {
    if (!message["content"].is_array()) continue;
    for (OrderedJson& part : message["content"]) {
      if (part["type"] != "image") continue;
      CheckCount(input, shown.size() + 1, kMostPictures, "pictures");
      shown.push_back(TakePicture(served, &part));
    }
  }
  Encoded encoded = EncodeChat(*served.tokenizer, conversation, input, most);
  if (served.pictures) *pictures = PlacePictures(shown, *served.pictures, &encoded.ids);
  return encoded;
}

std::string FieldOf(const std::string& message) {
  const size_t colon = std::min(message.find(':'), message.size());
  const size_t other = message.find_first_not_of("abcdefghijklmnopqrstuvwxyz_");
  return colon == other ? message.substr(0, colon) : "";
}

Asked RequestsOf(const Served& served, ApiRequest request) {
  Asked asked;
  asked.api = std::move(request);
  ApiRequest& api = asked.api;
  std::vector<Prompt> prompts = PromptsOf(served, &asked);
  const bool continues = !api.chat() || api.chat_input.continues();
  api.chat_input = {};
  api.prompts = std::vector<ApiPrompt>(prompts.size());
  const bool matches = api.form.must_call || api.form.schema;
  const bool channels = asked.thoughts == Thoughts::kChannels;
  if (matches && channels && api.form.tools.empty() && !continues) {
    const auto header = served.tokenizer->Encode(kFinal).ids;
    for (Prompt& prompt : prompts) {
      prompt.tokens.insert(prompt.tokens.end(), header.begin(), header.end());
    }
  }
  // Such an answer has to match from its first token, or from the header of a call.
  if (matches && (!channels || api.form.tools.empty())) asked.thoughts = Thoughts::kNone;
  const auto grammar = GrammarOf(served, api.form, asked.thoughts, &asked.unguided);
  if (grammar) {
    const auto& calls = served.tokenizer->calls();
    asked.check = std::make_unique<AnswerCheck>(api.form, calls ? &*calls : nullptr, asked.thoughts,
                                                api.answers());
  }
  for (const Prompt& prompt : prompts) {
    for (int64_t i = 0; i < api.n; ++i) {
      Request one;
      one.tokens = prompt.tokens;
      one.sampling = api.sampling;
      // Answers to the same prompt get different seeds, and the same seeds each time.
      if (one.sampling.seed) *one.sampling.seed += static_cast<uint64_t>(i);
      one.stop = served.tokenizer->stop();
      one.grammar = grammar;
      one.scores_prompt = api.echo && api.sampling.top_logprobs >= 0;
      one.continues = continues;
      one.only_reads = api.only_reads;
      one.pictures = prompt.pictures;
      asked.requests.push_back(std::move(one));
      if (api.echo) asked.echoes.push_back(prompt.echo);
    }
  }
  return asked;
}

std::vector<Request> TextsFor(const Served& served, const EmbeddingRequest& asked,
                              size_t* dropped) {
  std::vector<Request> requests;
  for (const ApiPrompt& input : asked.inputs) {
    Request& one = requests.emplace_back();
    one.embeds = true;
    if (const auto* ids = std::get_if<std::vector<int32_t>>(&input)) {
      one.tokens = *ids;
      continue;
    }
    const auto most = static_cast<size_t>(served.context);
    Encoded encoded =
        EncodePrompt(*served.tokenizer, std::get<std::string>(input), true, "input", most);
    *dropped += encoded.dropped;
    one.tokens = std::move(encoded.ids);
  }
  return requests;
}

}  // namespace rvv_runner
