// SPDX-License-Identifier: Apache-2.0
#include "server/served.h"

#include "api/api_error.h"
#include "api/values.h"

namespace rvv_runner {

void Served::CheckModel(const std::string& asked) const {
  // Ollama's names have a tag.
  if (asked.empty() || asked == name || asked == name + ":latest" ||
      (aliases != nullptr && aliases->Find(asked)))
    return;
  throw ApiError(kNoModel, "model: this server does not have that model; its model is " + name,
                 "model");
}

void Served::CheckAnswers(size_t answers) const {
  if (encodes) throw ApiError(400, std::string("model: ") + kOnlyVectors, "model");
  CheckCount("n", answers, queue, "answers of all prompts together, more than may wait (--queue)");
}

void Served::CheckIgnored(const std::vector<std::string>& ignored) const {
  if (strict && !ignored.empty()) Refuse(ignored.front(), "is not supported here");
}

}  // namespace rvv_runner
