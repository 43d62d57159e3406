// SPDX-License-Identifier: Apache-2.0
#include "engine/defaults.h"

#include <fstream>
#include <limits>
#include <utility>
#include <variant>

#include "input/errors.h"
#include "input/json.h"
#include "input/read_file.h"

namespace rvv_runner {

Sampling DefaultSampling(const std::string& folder) {
  Sampling sampling;
  sampling.temperature = 1.0;
  const std::string path = folder + "/mlc-chat-config.json";
  if (!std::ifstream(path)) return sampling;
  const Json config = ParseJson(ReadFile(path), path);
  const std::pair<const char*, double Sampling::*> fields[] = {
      {"temperature", &Sampling::temperature},
      {"top_p", &Sampling::top_p},
      {"repetition_penalty", &Sampling::repetition_penalty},
      {"presence_penalty", &Sampling::presence_penalty},
      {"frequency_penalty", &Sampling::frequency_penalty},
  };
  for (const auto& [name, field] : fields) {
    const Json* found = Find(config, name);
    if (found == nullptr || found->is_null()) continue;
    sampling.*field = found->is_number_float()
                          ? found->get<double>()
                          : static_cast<double>(IntegerOf(*found, path + ", " + name));
  }
  try {
    CheckSampling(sampling, std::numeric_limits<int32_t>::max());
  } catch (const InputError& error) {
    throw InputError(path + ": " + error.what());
  }
  return sampling;
}

}  // namespace rvv_runner
