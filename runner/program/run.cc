// SPDX-License-Identifier: Apache-2.0
#include "program/run.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/dtype.h>

#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <utility>

#include "input/errors.h"
#include "input/read_file.h"
#include "model/model.h"
#include "model/params.h"
#include "model/roi.h"
#include "program/arguments.h"
#include "tensors/safetensors.h"

namespace rvv_runner {

const char kRunUsage[] =
    "usage: runner run --params DIR --inputs FILE --outputs FILE [options]\n"
    "Calls a compiled model's function on tensors, and writes the tensors that it gives.\n\n"
    "  --params DIR         folder with tensor-cache.json and its shards\n"
    "  --inputs FILE        safetensors: a tensor for each of the model's inputs, by its name\n"
    "  --outputs FILE       safetensors to write: output_0, output_1, ...\n"
    "  --lib FILE.so        model library; without it, the one that is linked in\n"
    "  --check-vlen BITS    refuse a CPU with shorter vector registers than this\n"
    "  --help               this text\n";

namespace {

namespace ffi = tvm::ffi;
using tvm::runtime::Tensor;

constexpr char kFunction[] = "main";
constexpr int64_t kLongestRegister = 65536;

struct RunOptions {
  std::map<std::string, std::string> values;
  bool help = false;
};

RunOptions ParseRun(const std::vector<std::string>& words) {
  RunOptions options;
  for (const char* name : {"--params", "--inputs", "--outputs", "--lib", "--check-vlen"}) {
    options.values[name] = "";
  }
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--help") {
      options.help = true;
      return options;
    }
    const auto option = options.values.find(words[i]);
    if (option == options.values.end()) {
      throw InputError("unknown option '" + words[i] + "'; runner run --help lists them");
    }
    if (++i == words.size()) throw InputError(option->first + " needs a value");
    option->second = words[i];
  }
  for (const char* name : {"--params", "--inputs", "--outputs"}) {
    if (options.values[name].empty()) throw InputError(std::string(name) + " is missing");
  }
  return options;
}

std::vector<std::string> InputNames(const Library& library) {
  const std::string where = "the library's metadata";
  const Json* inputs = library.metadata().Find("inputs");
  if (inputs == nullptr) {
    throw InputError("the model library does not say what its inputs are: a language model is run "
                     "without the word run");
  }
  std::vector<std::string> names;
  for (const Json& input : inputs->List(where)) names.push_back(input.At("name", where).Text(where));
  return names;
}

// The inputs in their order. Shapes and dtypes are checked by the function itself.
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
    throw InputError(path + " has tensors that are no inputs; the model takes: " + wanted);
  }
  return inputs;
}

ffi::Any Call(const ffi::Function& function, const std::vector<Tensor>& inputs,
              const ffi::Array<ffi::Any>& params) {
  std::vector<ffi::AnyView> arguments(inputs.begin(), inputs.end());
  if (!params.empty()) arguments.emplace_back(params);
  ffi::Any result;
  function.CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &result);
  return result;
}

// The tensors of a result: of one, or of a list that may hold lists.
void Collect(const ffi::Any& result, std::vector<Tensor>* tensors) {
  if (const auto tensor = result.try_cast<Tensor>()) {
    tensors->push_back(*tensor);
    return;
  }
  for (const ffi::Any& part : result.cast<ffi::Array<ffi::Any>>()) Collect(part, tensors);
}

void WriteOutputs(const std::vector<Tensor>& outputs, const std::string& path) {
  std::vector<std::pair<std::string, TensorBytes>> named;
  for (const Tensor& tensor : outputs) {
    const DLDataType dtype = tensor->dtype;
    std::vector<int64_t> shape(tensor->shape, tensor->shape + tensor->ndim);
    int64_t bytes = (dtype.bits + 7) / 8;
    for (const int64_t size : shape) bytes *= size;
    const char* data = static_cast<const char*>(tensor->data) + tensor->byte_offset;
    named.emplace_back("output_" + std::to_string(named.size()),
                       TensorBytes{ffi::DLDataTypeToString(dtype), std::move(shape),
                                   {data, static_cast<size_t>(bytes)}});
  }
  const std::string text = MakeSafetensors(named);
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  if (!stream) throw InputError("--outputs: cannot write " + path);
  stream.write(text.data(), static_cast<std::streamsize>(text.size()));
  stream.close();
  if (!stream) throw RunError("--outputs: writing " + path + " failed");
}

}  // namespace

int RunTensors(const std::vector<std::string>& words) {
  RunOptions options = ParseRun(words);
  if (options.help) {
    std::cout << kRunUsage;
    return 0;
  }
  const std::string& vlen = options.values["--check-vlen"];
  const int64_t bits = vlen.empty() ? 0 : ParseInteger("--check-vlen", vlen, 0, kLongestRegister);
  const Library library(options.values["--lib"], bits, {kFunction});
  const ffi::Function function = library.Function(kFunction);
  const auto inputs = ReadInputs(options.values["--inputs"], InputNames(library));
  auto params = LoadParams(options.values["--params"], WantedParams(library.metadata()));
  library.ArrangeWeights(params);
  ffi::Any result;
  {
    const RegionOfInterest call(true);
    result = Call(function, inputs, params);
  }
  std::vector<Tensor> outputs;
  Collect(result, &outputs);
  WriteOutputs(outputs, options.values["--outputs"]);
  return 0;
}

}  // namespace rvv_runner
