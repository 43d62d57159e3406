// SPDX-License-Identifier: Apache-2.0
// Reads tokens into TVM's paged KV cache with a sliding and a global layer, and tells what its
// attention kernels are given: one JSON object a call. Arguments: the window of the sliding layer
// (0: not said), then for each forward pass how many tokens of each of two sequences, as "3,2". Or
// of a sequence: "fill SEQUENCE TOKENS" its rows with numbered bytes, "show SEQUENCE BEGIN END" in
// hexadecimal, "fork PARENT CHILD TOKENS".
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/function.h>
#include <tvm/runtime/tensor.h>

#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

namespace {

using tvm::ffi::Any;
using tvm::ffi::Array;
using tvm::ffi::Function;
using tvm::ffi::PackedArgs;
using tvm::ffi::Shape;
using tvm::ffi::String;
using tvm::runtime::Tensor;

constexpr int64_t kHeadDim = 2, kSliding = 3, kGlobal = 0, kInline = 2;

Function Global(const char* name) { return Function::GetGlobalRequired(name); }

std::string Numbers(const Tensor& tensor) {
  int64_t count = 1;
  for (int i = 0; i < tensor->ndim; ++i) count *= tensor->shape[i];
  const auto* first = static_cast<const int32_t*>(tensor->data) + tensor->byte_offset / 4;
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(first[i]);
  return "[" + text + "]";
}

// `table`: where the page table begins in the arguments, 0 for a kernel without one.
Array<Any> Recorded(const char* name, int table, bool causal) {
  return {String("tirx"), Function::FromPacked([=](PackedArgs args, Any*) {
            const int last = args.size();
            std::cout << "{\"kernel\": \"" << name << "\"";
            std::cout << ", \"scale\": " << args[last - 3].cast<double>();
            std::cout << ", \"base\": " << args[last - 2].cast<double>();
            if (causal) std::cout << ", \"causal\": " << args[last - 5].cast<int64_t>();
            if (table > 0) {
              std::cout << ", \"indptr\": " << Numbers(args[table].cast<Tensor>());
              std::cout << ", \"pages\": " << Numbers(args[table + 1].cast<Tensor>());
              std::cout << ", \"lengths\": " << Numbers(args[table + 2].cast<Tensor>());
              std::cout << ", \"positions\": " << Numbers(args[table + 3].cast<Tensor>());
            }
            std::cout << "}\n";
          })};
}

Any NewCache(int64_t window) {
  std::vector<int64_t> config{2, 128, 64, 16, 1};
  if (window > 0) config.push_back(window);
  const Function nothing = Function::FromPacked([](PackedArgs, Any*) {});
  const Array<Any> none;
  const Tensor type = Tensor::Empty({}, DLDataType{kDLFloat, 32, 1}, DLDevice{kDLCPU, 0});
  return Global("vm.builtin.paged_attention_kv_cache_create")(
      Shape(config), Shape({0, 2}), 1, 1, kHeadDim, kHeadDim, Shape({kSliding, kGlobal}), false,
      kInline, 0.5, 1e6, nullptr, type, nothing, nullptr, Recorded("ragged", 0, true),
      Recorded("prefill", 3, true), Recorded("decode", 2, false),
      Recorded("sliding prefill", 3, true), Recorded("sliding decode", 2, false), none, none, none,
      Array<Function>{nothing}, nothing, nothing, nothing, nothing);
}

void Rows(const Any& cache, const std::string& command) {
  std::istringstream words(command);
  std::string verb;
  int64_t sequence = 0, a = 0, b = 0;
  words >> verb >> sequence >> a >> b;
  const Function read = Global("vm.builtin.paged_attention_kv_cache_read_rows");
  if (verb == "fork") {
    Global("vm.builtin.kv_state_fork_sequence")(cache, sequence, a, b);
    return;
  }
  const bool fills = verb == "fill";
  const Tensor rows = read(cache, sequence, fills ? 0 : a, fills ? a : b).cast<Tensor>();
  auto* bytes = static_cast<uint8_t*>(rows->data);
  const int64_t count = rows->shape[0] * rows->shape[1] * rows->shape[2];
  if (fills) {
    for (int64_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>((sequence + 1) * i % 251);
    Global("vm.builtin.paged_attention_kv_cache_write_rows")(cache, sequence, 0, rows);
    return;
  }
  std::cout << "{\"shape\": [" << rows->shape[0] << ", " << rows->shape[1] << ", " << rows->shape[2]
            << "], \"bytes\": \"";
  for (int64_t i = 0; i < count; ++i) {
    char text[3];
    std::snprintf(text, sizeof(text), "%02x", bytes[i]);
    std::cout << text;
  }
  std::cout << "\"}\n";
}

}  // namespace

int main(int argc, char** argv) try {
  const Any cache = NewCache(std::stoll(argv[1]));
  for (int64_t sequence : {0, 1}) Global("vm.builtin.kv_state_add_sequence")(cache, sequence);
  for (int pass = 2; pass < argc; ++pass) {
    const std::string text = argv[pass];
    if (text.find(' ') != std::string::npos) {
      Rows(cache, text);
      continue;
    }
    const size_t comma = text.find(',');
    const int64_t first = std::stoll(text), second = std::stoll(text.substr(comma + 1));
    Global("vm.builtin.kv_state_begin_forward")(cache, Shape({0, 1}), Shape({first, second}));
    const auto tensor = [&](int64_t heads) {
      return Tensor::Empty({first + second, heads, kHeadDim}, DLDataType{kDLFloat, 32, 1},
                           DLDevice{kDLCPU, 0});
    };
    for (int64_t layer : {0, 1}) {
      Global("vm.builtin.attention_kv_cache_attention_with_fused_qkv")(cache, layer, 1.0, tensor(3),
                                                                       tensor(1));
    }
    Global("vm.builtin.kv_state_end_forward")(cache);
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
