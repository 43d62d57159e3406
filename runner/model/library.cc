// SPDX-License-Identifier: Apache-2.0
#include "model/library.h"

#include <tvm/ffi/container/shape.h>
#include <tvm/runtime/memory/memory_manager.h>
#include <tvm/runtime/tensor.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "input/errors.h"
#include "input/log.h"
#include "model/vector_unit.h"

// The linked-in libraries, defined by the build that links them: bits in a vector register
// (ascending), 1 if the library needs vectors of halves, and the prefix of its symbols. A row
// without a prefix ends the list. The list is absent if the library is a file.
extern "C" {
struct mlc_rvv_library {
  int vlen;
  int zvfh;
  const char* prefix;
};
__attribute__((weak)) extern const mlc_rvv_library mlc_rvv_libraries[];

// The switch of linked-in kernels that have code for SpacemiT's matrix unit; absent without such.
__attribute__((weak)) extern int mlc_rvv_use_ime;
}

namespace rvv_runner {
namespace {

namespace ffi = tvm::ffi;
using tvm::runtime::Tensor;

constexpr char kLoad[] = "vm_load_executable";
const std::vector<std::string> kOfLanguageModels = {"embed", "prefill", "decode",
                                                    "create_tir_paged_kv_cache"};

// The variable MLC_RVV_IME: 0 keeps the matrix unit out of use, 1 leaves CPUs without it idle.
bool AsksForMatrixUnit(const char* value) {
  const char* text = std::getenv("MLC_RVV_IME");
  return text != nullptr && std::string(text) == value;
}

// A linked-in library, and whether its kernels use the matrix unit.
struct Variant {
  mlc_rvv_library library;
  bool ime;

  VectorUnit Needs() const { return {library.vlen, library.zvfh != 0, ime}; }
};

// The linked-in libraries; one for registers of 256 bits also with the matrix unit, if its kernels
// have code for it.
std::vector<Variant> Variants() {
  if (mlc_rvv_libraries == nullptr) return {{{0, 0, ""}, false}};
  const bool has_ime = &mlc_rvv_use_ime != nullptr && !AsksForMatrixUnit("0");
  std::vector<Variant> variants;
  for (auto one = mlc_rvv_libraries; one->prefix != nullptr; ++one) {
    variants.push_back({*one, false});
    if (has_ime && one->vlen == 256) variants.push_back({*one, true});
  }
  return variants;
}

ffi::Module LinkedIn(const char* prefix) {
  const auto module =
      ffi::Function::GetGlobalRequired("ffi.SystemLib")(ffi::String(prefix)).cast<ffi::Module>();
  if (!module->GetFunction(kLoad, true).has_value()) {
    throw InputError("no model library is linked into this program; name one with --lib");
  }
  return module;
}

ffi::Module FromFile(const std::string& path) {
  // The loader reports the same error for a missing file and a bad one.
  if (!std::ifstream(path)) throw InputError("--lib: cannot read " + path);
  std::optional<ffi::Module> module;
  try {
    module = ffi::Module::LoadFromFile(path);
  } catch (const ffi::Error& error) {
    throw InputError("--lib: " + path + " cannot be loaded: " + error.message());
  }
  if (!(*module)->GetFunction(kLoad, true).has_value()) {
    throw InputError("--lib: " + path + " is not a model library: it has no " + kLoad);
  }
  return *module;
}

// Keeps this process on those CPUs that can run code that needs this unit, and returns them.
std::vector<Cpu> Settle(const std::vector<Cpu>& cpus, const VectorUnit& needed) {
  std::vector<Cpu> fit = CpusThatRun(cpus, needed);
  StayOn(fit);
  return fit;
}

// Opens the library, and sets `vlen` to the bits in a vector register that it is known to need, and
// `cpus` to those that can run it.
ffi::Module Open(const std::string& path, int64_t check_vlen, int64_t* vlen,
                 std::vector<Cpu>* cpus) {
  std::vector<Variant> variants =
      path.empty() ? Variants() : std::vector<Variant>{{{0, 0, ""}, false}};
  const bool matrix = std::ranges::any_of(variants, &Variant::ime);
  std::vector<Cpu> all = ProbeCpus(matrix);
  if (matrix && AsksForMatrixUnit("1")) {
    if (std::ranges::any_of(all, [](const Cpu& cpu) { return cpu.unit.ime; })) {
      std::erase_if(variants, [](const Variant& one) { return !one.ime; });
    } else {
      Log(LogLevel::kWarn, "MLC_RVV_IME=1: no CPU has the matrix unit");
    }
  }
  std::vector<VectorUnit> needs;
  for (const Variant& one : variants) needs.push_back(one.Needs());
  size_t best = 0;
  VectorUnit needed;
  const auto settle = [&] {
    best = BestLibrary(all, needs);
    needed = needs[best];
    needed.bits = std::max(check_vlen, needed.bits);
    *cpus = Settle(all, needed);
  };
  try {
    settle();
  } catch (const RunError&) {
    // A gate that let the probes through may refuse this thread.
    if (std::erase_if(all, [](const Cpu& cpu) { return cpu.gated; }) == 0) throw;
    settle();
  }
  if (needed.ime) mlc_rvv_use_ime = 1;
  *vlen = variants[best].library.vlen;
  return path.empty() ? LinkedIn(variants[best].library.prefix) : FromFile(path);
}

ffi::Module StartVm(const ffi::Module& library) {
  const auto vm = library->GetFunction(kLoad, true).value()().cast<ffi::Module>();
  constexpr auto kPooled = static_cast<int>(tvm::runtime::memory::AllocatorType::kPooled);
  vm->GetFunction("vm_initialization").value()(static_cast<int>(kDLCPU), 0, kPooled);
  return vm;
}

}  // namespace

std::optional<CacheSizes> CacheSizesOf(const Library& library) {
  const Json* about = Find(library.metadata(), "kv_cache");
  if (about == nullptr) return std::nullopt;
  CacheSizes sizes;
  for (const auto& [name, size] : {std::pair{"num_hidden_layers", &sizes.layers},
                                   {"num_key_value_heads", &sizes.heads},
                                   {"head_dim", &sizes.width},
                                   {"row_bytes", &sizes.row_bytes}}) {
    const Json* field = Find(*about, name);
    if (field == nullptr) return std::nullopt;
    *size = IntegerOf(*field, "the library's metadata, kv_cache");
  }
  return sizes;
}

int64_t TokenBytes(const Library& library) {
  const auto sizes = CacheSizesOf(library);
  return sizes ? sizes->bytes() : 0;
}

std::optional<Preparation> PreparationOf(const Library& library) {
  const Json* about = Find(library.metadata(), "picture");
  if (about == nullptr) return std::nullopt;
  return ReadPreparation(*about);
}

int64_t StateBytes(const Library& library) {
  return library.Limit("recurrent_floats", 0) * static_cast<int64_t>(sizeof(float));
}

std::string DeviceCounters() {
  const auto counters = ffi::Function::GetGlobal("mlc_rvv.accelerator.counters");
  return counters.has_value() ? std::string((*counters)().cast<ffi::String>()) : "null";
}

Library::Library(const std::string& path, int64_t check_vlen,
                 const std::vector<std::string>& functions)
    : library_(Open(path, check_vlen, &vlen_, &cpus_)), vm_(StartVm(library_)) {
  metadata_ = ParseJson(Function("_metadata")().cast<std::string>(), "the library's metadata");
  vlen_ = std::max(vlen_, Limit("vlen", 0));
  // The metadata can name a unit that the link did not.
  cpus_ = Settle(cpus_, {vlen_, Limit("zvfh", 0) != 0, false});
  const bool language = functions.empty() && !encodes();
  for (const std::string& name : language ? kOfLanguageModels : functions) Function(name);
}

int64_t Library::Limit(const std::string& name, int64_t otherwise) const {
  const Json* field = Find(metadata_, name);
  if (field == nullptr) return otherwise;
  const int64_t value = IntegerOf(*field, "the library's metadata, " + name);
  return value < 0 ? otherwise : value;
}

bool Library::Has(const std::string& name) const { return vm_->GetFunction(name).has_value(); }

ffi::Function Library::Function(const std::string& name) const {
  const auto function = vm_->GetFunction(name);
  if (!function.has_value()) throw InputError("the model library has no function " + name);
  return *function;
}

std::string Library::Arrangement() const {
  const auto entry = vm_->GetFunction("weights_in_tiles");
  return entry.has_value() ? (*entry)().cast<std::string>() : "";
}

void Library::ArrangeWeights(const ffi::Array<ffi::Any>& params) const {
  const std::string arrangement = Arrangement();
  if (arrangement.empty()) return;
  const std::string where = "the library's weights_in_tiles";
  const Json about = ParseJson(arrangement, where);
  for (const Json& weight : ListOf(Field(about, "parameters", where), where)) {
    const int64_t index = IntegerOf(Field(weight, "index", where), where);
    const int64_t item = IntegerOf(Field(weight, "item", where), where);
    const std::string name = "reorder_weights_" + std::to_string(8 * item);
    const auto reorder = library_->GetFunction(name, true);
    if (!reorder.has_value()) throw InputError("the model library has no function " + name);
    if (index < 0 || index >= static_cast<int64_t>(params.size())) {
      throw InputError(where + ": there is no parameter " + std::to_string(index));
    }
    const Tensor tensor = params[index].cast<Tensor>();
    // The function reorders matrices [..., rows, columns] of elements of one, two or four bytes.
    int64_t count = 1;
    for (int i = 0; i + 2 < tensor->ndim; ++i) count *= tensor->shape[i];
    const int64_t rows = tensor->ndim < 2 ? 1 : tensor->shape[tensor->ndim - 2];
    const int64_t bytes = tensor->shape[tensor->ndim - 1] * (tensor->dtype.bits / 8);
    const DLDataType bits{kDLUInt, static_cast<uint8_t>(8 * item), 1};
    (*reorder)(tensor.CreateView(ffi::Shape({count, rows, bytes / item}), bits));
  }
}

}  // namespace rvv_runner
