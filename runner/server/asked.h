// SPDX-License-Identifier: Apache-2.0
// From a body to the requests for the engine.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/answer_check.h"
#include "api/api_error.h"
#include "api/api_request.h"
#include "api/completion_writer.h"
#include "api/embedding_request.h"
#include "api/values.h"
#include "engine/engine.h"
#include "server/served.h"
#include "text/answer_parts.h"

namespace rvv_runner {

// The field of a request that an error of the engine names before a colon; empty without one.
std::string FieldOf(const std::string& message);

// Calls `work`; errors of the request become ApiError. `input`: the field of the prompt.
template <typename Work>
auto Explained(const std::string& input, const Work& work) {
  try {
    return work();
  } catch (const ToolsError& error) {
    throw ApiError(kUnsupportedTools, error.what(), error.field());
  } catch (const GrammarError& error) {
    throw ApiError(kUnsupportedSchema, error.what(), error.field());
  } catch (const ContextError& error) {
    throw ApiError(kTooLong, input + ": " + error.what(), input);
  } catch (const InputError& error) {
    const std::string field = FieldOf(error.what());
    if (!field.empty()) throw ApiError(400, error.what(), field);
    Refuse(input, error.what());
  } catch (const QueueFull& error) {
    throw ApiError(kQueueFull, error.what());
  }
}

// What a client asks for.
struct Asked {
  ApiRequest api;                 // without its prompts
  std::vector<Request> requests;  // of each answer
  std::vector<Echo> echoes;       // of each answer, or none
  Thoughts thoughts = Thoughts::kNone;
  std::unique_ptr<AnswerCheck> check;  // null: of any form
  std::vector<std::string> unguided;   // paths of keywords that the grammar leaves to the check
  size_t dropped = 0;                  // bytes of the prompts that have no token in the model
};

// The tokens of a conversation, and its pictures, which are taken out of its messages. `input`: the field
// of the messages. Throws what Explained expects.
Encoded EncodeShown(const Served& served, ChatInput conversation, const std::string& input,
                    size_t most, std::vector<PromptPicture>* pictures);

// The requests of `api`. Throws what Explained expects.
Asked RequestsOf(const Served& served, ApiRequest api);

// The requests for vectors of texts, and the bytes of the texts that have no token in the model. Throws
// what Explained expects.
std::vector<Request> TextsFor(const Served& served, const EmbeddingRequest& asked, size_t* dropped);

}  // namespace rvv_runner
