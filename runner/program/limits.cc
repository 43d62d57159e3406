// SPDX-License-Identifier: Apache-2.0
#include "program/limits.h"

#include <algorithm>
#include <string>

#include "input/errors.h"

namespace rvv_runner {
namespace {

void RefuseUnsupported(const Library& library) {
  const Json* kind = Find(library.metadata(), "kv_state_kind");
  const bool cached =
      kind == nullptr || TextOf(*kind, "the library's metadata, kv_state_kind") == "kv_cache";
  // A hybrid model also has states that the runner keeps beside the cache.
  if (!cached && StateBytes(library) == 0) {
    throw InputError("the model does not keep its state in a KV cache; the runner cannot run it");
  }
}

void CheckContext(int64_t most, int64_t context) {
  if (most <= context) return;
  throw InputError("--max-seq " + std::to_string(most) + " is more than the model's context of " +
                   std::to_string(context) + " tokens");
}

int64_t ChunkOf(const Library& library, const Arguments& arguments, int64_t otherwise) {
  const int64_t largest = library.Limit("prefill_chunk_size", otherwise);
  const int64_t chunk = arguments.prefill_chunk ? arguments.prefill_chunk : largest;
  if (chunk > largest) {
    throw InputError("--prefill-chunk " + std::to_string(chunk) +
                     " is more than the model library's limit of " + std::to_string(largest));
  }
  return chunk;
}

// The longest sequence, or `otherwise` if the library does not state it. An encoder reads a text in
// one call.
int64_t ContextOf(const Library& library, const Arguments& arguments, int64_t otherwise) {
  const int64_t context = library.Limit("context_window_size", otherwise);
  return library.encodes() ? std::min(context, ChunkOf(library, arguments, context)) : context;
}

}  // namespace

Limits MostOf(const Library& library, const Arguments& arguments) {
  RefuseUnsupported(library);
  const int64_t context = ContextOf(library, arguments, arguments.max_seq);
  const int64_t most = arguments.max_seq ? arguments.max_seq : context;
  if (most == 0)
    throw InputError("the model library does not state its context length; give --max-seq");
  CheckContext(most, context);
  return {most, std::min(ChunkOf(library, arguments, most), most)};
}

Limits LimitsOf(const Library& library, const Arguments& arguments) {
  RefuseUnsupported(library);
  const auto prompt = static_cast<int64_t>(arguments.tokens.size());
  const int64_t needed = prompt + arguments.max_new;
  const int64_t depth = arguments.region.depth;
  const int64_t context = ContextOf(library, arguments, depth + needed);
  const int64_t longest = arguments.max_seq ? arguments.max_seq : context;
  CheckContext(longest, context);
  if (depth >= longest) {
    throw InputError("--roi-depth " + std::to_string(depth) + " leaves no room in a sequence of " +
                     std::to_string(longest) + " tokens");
  }
  const int64_t most = longest - depth;
  const std::string after = depth ? ", after --roi-depth " + std::to_string(depth) : "";
  if (prompt > most) {
    throw InputError("the prompt has " + std::to_string(prompt) +
                     " tokens, more than the longest sequence, " + std::to_string(most) + after);
  }
  if (needed > most) {
    throw InputError("a prompt of " + std::to_string(prompt) + " tokens and --max-new " +
                     std::to_string(arguments.max_new) + " do not fit into a sequence of " +
                     std::to_string(most) + " tokens" + after);
  }
  const int64_t chunk = ChunkOf(library, arguments, needed);
  // The cache holds what this run needs, not the most that the model allows.
  return {arguments.max_seq ? most : needed, library.encodes() ? chunk : std::min(chunk, prompt)};
}

int64_t DefaultMaxNew(const Library& library, const Arguments& arguments, int64_t most) {
  if (library.encodes()) return 0;
  const auto prompt = static_cast<int64_t>(arguments.tokens.size());
  const int64_t context =
      library.Limit("context_window_size", arguments.region.depth + prompt + most);
  const int64_t room = arguments.max_seq ? std::min(arguments.max_seq, context) : context;
  return std::clamp<int64_t>(room - arguments.region.depth - prompt, 1, most);
}

}  // namespace rvv_runner
