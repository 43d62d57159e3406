// SPDX-License-Identifier: Apache-2.0
#include "program/run.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>
#include <utility>

#include "input/errors.h"
#include "input/output_file.h"
#include "input/read_file.h"
#include "model/library.h"
#include "model/params.h"
#include "model/results.h"
#include "model/roi.h"
#include "model/thread_pool.h"
#include "program/arguments.h"
#include "program/threads.h"
#include "tensors/safetensors.h"

namespace rvv_runner {

const char kRunUsage[] =
    "usage: runner run --params DIR --inputs FILE --outputs FILE [options]\n"
    "Calls a compiled model on tensors, and writes the tensors that it returns.\n\n"
    "  --params DIR         folder with tensor-cache.json and its shards\n"
    "  --map-params DIR, --no-params-check: see runner --help\n"
    "  --inputs FILE        safetensors file with a tensor for each input of the model, by name\n"
    "  --outputs FILE       safetensors file to write: output_0, output_1, ...\n"
    "  --function NAME      function of the model to call (main)\n"
    "  --steps N            number of calls (1); the outputs are those of the last call\n"
    "  --feed IN=OUT,...    after each call, use output number OUT as the input named IN of the\n"
    "                       next call. If OUT holds logits and IN takes integers, IN gets the\n"
    "                       index of the largest logit of the last row, and the file gets these\n"
    "                       indices of all calls as chosen_IN\n"
    "  --lib FILE.so        model library (the one linked into this program)\n"
    "  --threads N          threads that compute (TVM_NUM_THREADS, or else the physical cores "
    "that\n"
    "                       can run the library)\n"
    "  --check-vlen BITS    refuse a CPU whose vector registers are shorter than this\n"
    "  --help               this text\n";

namespace {

namespace ffi = tvm::ffi;
using tvm::runtime::Tensor;

// Kind of the error of a model that rejects an input.
constexpr char kBadIndex[] = "IndexError";

// Compiled models call this function for an input with a wrong number: with a text that has a {}
// for each of the numbers after it.
void RejectInput(ffi::PackedArgs arguments, ffi::Any*) {
  std::string text = arguments[0].cast<std::string>();
  size_t at = 0;
  for (int i = 1; i < arguments.size() && (at = text.find("{}", at)) != std::string::npos; ++i) {
    const std::string number = std::to_string(arguments[i].cast<int64_t>());
    text.replace(at, 2, number);
    at += number.size();
  }
  throw ffi::Error(kBadIndex, text, "");
}

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef().def_packed("mlc_rvv.reject_input", RejectInput);
}
constexpr int64_t kMostSteps = 1 << 20;

struct RunArguments {
  std::string inputs;
  std::string outputs;
  std::string feeds;
  std::string function = "main";
  int64_t steps = 1;
  Arguments model;
};

RunArguments Parse(const std::vector<std::string>& words) {
  RunArguments a;
  OptionTable options;
  options.values = {{"--inputs", TakeText(&a.inputs)},
                    {"--outputs", TakeText(&a.outputs)},
                    {"--feed", TakeText(&a.feeds)},
                    {"--function", TakeText(&a.function)},
                    {"--steps", TakeInteger(1, kMostSteps, &a.steps)}};
  a.model = ParseModelArguments(options.Read(words));
  if (a.model.help) return a;
  RefuseAnswerOptions(a.model, "run");
  if (a.inputs.empty()) throw InputError("--inputs is missing");
  if (a.outputs.empty()) throw InputError("--outputs is missing");
  return a;
}

std::vector<std::string> InputNames(const Library& library, const std::string& function) {
  const std::string where = "the library's metadata";
  const Json* inputs = Find(library.metadata(), "inputs");
  if (inputs == nullptr) {
    throw InputError(
        "the model library lists no inputs; run a language model without the word 'run'");
  }
  std::vector<std::string> names;
  for (const Json& input : ListOf(Field(*inputs, function, where), where)) {
    names.push_back(TextOf(Field(input, "name", where), where));
  }
  return names;
}

// The inputs in the order of the function, which checks shapes and dtypes itself.
std::vector<Tensor> ReadInputs(const std::string& path, const std::vector<std::string>& names) {
  const std::string text = ReadFile(path);
  const auto tensors = ParseSafetensors(text, path);
  std::vector<Tensor> inputs;
  for (const std::string& name : names) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) throw InputError(path + " has no tensor " + name);
    const TensorBytes& given = found->second;
    Tensor tensor = Tensor::Empty(ffi::Shape(given.shape), ffi::StringToDLDataType(given.dtype),
                                  DLDevice{kDLCPU, 0});
    std::memcpy(tensor->data, given.bytes.data(), given.bytes.size());
    inputs.push_back(tensor);
  }
  if (tensors.size() != names.size()) {
    std::string wanted;
    for (const std::string& name : names) wanted += (wanted.empty() ? "" : ", ") + name;
    throw InputError(path +
                     " has tensors that are not inputs of the model; its inputs are: " + wanted);
  }
  return inputs;
}

// Calls the model, which checks the indices among its inputs.
ffi::Any Call(const ffi::Function& function, const std::vector<Tensor>& inputs,
              const ffi::Array<ffi::Any>& params) {
  StartThreadPool();
  std::vector<ffi::AnyView> arguments(inputs.begin(), inputs.end());
  if (!params.empty()) arguments.emplace_back(params);
  ffi::Any result;
  try {
    function.CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &result);
  } catch (const ffi::Error& error) {
    if (error.kind() != kBadIndex) throw;
    throw InputError(error.message());
  }
  return result;
}

// All tensors of a result, which is a tensor or a (nested) list of tensors.
void Collect(const ffi::Any& result, std::vector<Tensor>* tensors) {
  if (const auto tensor = result.try_cast<Tensor>()) {
    tensors->push_back(*tensor);
    return;
  }
  for (const ffi::Any& part : result.cast<ffi::Array<ffi::Any>>()) Collect(part, tensors);
}

// An output that is used as an input of the next call.
struct Feed {
  size_t input;
  size_t output;
};

// Parses `text`, IN=OUT,..., where IN is one of `names`.
std::vector<Feed> ParseFeeds(const std::string& text, const std::vector<std::string>& names) {
  std::vector<Feed> feeds;
  std::istringstream stream(text);
  std::string part;
  while (std::getline(stream, part, ',')) {
    const size_t sign = part.find('=');
    const auto input = std::find(names.begin(), names.end(), part.substr(0, sign));
    if (sign == std::string::npos || input == names.end()) {
      throw InputError("--feed: '" + part + "' is not INPUT=NUMBER with an input of the model");
    }
    const int64_t output = ParseInteger("--feed", part.substr(sign + 1), 0, kMostSteps);
    feeds.push_back({static_cast<size_t>(input - names.begin()), static_cast<size_t>(output)});
  }
  return feeds;
}

// The index of the largest value in the last row of float32 logits; the first of equal ones.
int64_t LargestOfLastRow(const Tensor& logits) {
  const int64_t width = logits->ndim > 0 ? logits->shape[logits->ndim - 1] : 0;
  if (logits.numel() == 0) throw RunError("--feed: the model's logits are empty");
  const float* last = FirstOf<const float>(logits) + logits.numel() - width;
  return std::max_element(last, last + width) - last;
}

// The value of an input that is fed from an output: the tensor, or the index of its largest value.
Tensor Fed(const Tensor& output, const Tensor& input, std::vector<int64_t>* chosen) {
  const DLDataType from = output->dtype;
  const DLDataType to = input->dtype;
  if (from.code == to.code && from.bits == to.bits && from.lanes == to.lanes) return output;
  if (from.code != kDLFloat || from.bits != 32 || to.code != kDLInt || to.bits != 64) {
    throw InputError("--feed: an output of type " + std::string(ffi::DLDataTypeToString(from)) +
                     " cannot become an input of type " + std::string(ffi::DLDataTypeToString(to)));
  }
  chosen->push_back(LargestOfLastRow(output));
  const std::vector<int64_t> one(static_cast<size_t>(input->ndim), 1);
  Tensor place = Tensor::Empty(ffi::Shape(one), to, DLDevice{kDLCPU, 0});
  std::memcpy(place->data, &chosen->back(), sizeof(int64_t));
  return place;
}

using Named = std::vector<std::pair<std::string, Tensor>>;

Tensor Listed(const std::vector<int64_t>& numbers) {
  const ffi::Shape shape({static_cast<int64_t>(numbers.size())});
  Tensor tensor = Tensor::Empty(shape, DLDataType{kDLInt, 64, 1}, DLDevice{kDLCPU, 0});
  std::memcpy(tensor->data, numbers.data(), numbers.size() * sizeof(int64_t));
  return tensor;
}

void WriteOutputs(const Named& outputs, const std::string& path) {
  std::vector<std::pair<std::string, TensorBytes>> named;
  for (const auto& [name, tensor] : outputs) {
    const DLDataType dtype = tensor->dtype;
    const auto bytes = static_cast<size_t>(tensor.numel() * ((dtype.bits + 7) / 8));
    named.emplace_back(name, TensorBytes{ffi::DLDataTypeToString(dtype),
                                         {tensor->shape, tensor->shape + tensor->ndim},
                                         {FirstOf<const char>(tensor), bytes}});
  }
  const std::string text = MakeSafetensors(named);
  OutputFile file("--outputs", path);
  file.Write(text.data(), text.size());
  file.Close();
}

}  // namespace

int RunTensors(const std::vector<std::string>& words) {
  const RunArguments own = Parse(words);
  const Arguments& model = own.model;
  if (model.help) {
    std::cout << kRunUsage;
    return 0;
  }
  const Library library(model.library, model.check_vlen, {own.function});
  SetThreads(model.threads);
  const ffi::Function function = library.Function(own.function);
  const auto names = InputNames(library, own.function);
  const auto feeds = ParseFeeds(own.feeds, names);
  auto inputs = ReadInputs(own.inputs, names);
  const auto params = LoadParams(model.params, library, !model.unchecked, model.map_folder);
  std::map<size_t, std::vector<int64_t>> chosen;
  std::vector<Tensor> outputs;
  for (int64_t step = 0; step < own.steps; ++step) {
    ffi::Any result;
    {
      const RegionOfInterest call(true);
      result = Call(function, inputs, params);
    }
    outputs.clear();
    Collect(result, &outputs);
    for (const Feed& feed : feeds) {
      if (feed.output >= outputs.size()) {
        throw InputError("--feed: the model has only " + std::to_string(outputs.size()) +
                         " outputs");
      }
      inputs[feed.input] = Fed(outputs[feed.output], inputs[feed.input], &chosen[feed.input]);
    }
  }
  Named named;
  for (const Tensor& output : outputs) {
    named.emplace_back("output_" + std::to_string(named.size()), output);
  }
  for (const auto& [input, places] : chosen) {
    if (!places.empty()) named.emplace_back("chosen_" + names[input], Listed(places));
  }
  WriteOutputs(named, own.outputs);
  return 0;
}

}  // namespace rvv_runner
