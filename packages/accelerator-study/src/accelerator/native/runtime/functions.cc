// SPDX-License-Identifier: Apache-2.0
// Packed functions that a compiled model calls for linear layers and attention on the accelerator;
// the passes CallAccelerator and AttendOnAccelerator use their names.
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <vector>

#include "runtime/attention.h"
#include "runtime/linear.h"

namespace accelerator {
namespace {

// The program's only device, created by the first call of Running.
struct Driver {
  std::unique_ptr<Products> products = MakeProducts(mlc_rvv_accelerator_image);
  LinearLayers layers{products.get()};
  Attention attention{products.get()};
};

Driver& Running() {
  static Driver driver;
  return driver;
}

std::mutex& Lock() {
  static std::mutex lock;
  return lock;
}

// Runs an action under the lock, and turns a DeviceError into TVM's RuntimeError.
void Do(const std::function<void()>& action) {
  const std::lock_guard<std::mutex> held(Lock());
  try {
    action();
  } catch (const DeviceError& error) {
    TVM_FFI_THROW(RuntimeError) << "accelerator " << mlc_rvv_accelerator_image.name << ": "
                                << error.what();
  }
}

// Loads matrices [count, outputs, width] of int8; a row ends with the 4 bytes of its float32 scale.
void LoadInt8(void* weights, int64_t count, int64_t outputs, int64_t width) {
  Do([&] {
    if (width <= static_cast<int64_t>(sizeof(float))) throw DeviceError("weights without a row");
    const auto* data = static_cast<const std::int8_t*>(weights);
    for (int64_t i = 0; i < count; ++i, data += outputs * width) {
      Running().layers.LoadInt8(data, data, outputs, width - sizeof(float));
    }
  });
}

// Loads matrices [count, outputs, inputs] of float32.
void LoadFloat(void* weights, int64_t count, int64_t outputs, int64_t inputs) {
  Do([&] {
    const float* data = static_cast<const float*>(weights);
    for (int64_t i = 0; i < count; ++i, data += outputs * inputs) {
      Running().layers.Load(data, data, outputs, inputs);
    }
  });
}

// Computes out [rows, outputs] = values [rows, inputs] by transposed weights [outputs, inputs].
void Multiply(void* out, void* values, void* weights, int64_t rows, int64_t outputs,
              int64_t inputs) {
  Do([&] {
    Running().layers.Multiply(weights, static_cast<const float*>(values), static_cast<float*>(out),
                              rows, outputs, inputs);
  });
}

// Arguments of both attention functions: queries and out [all, heads, width], lse [all, heads].
// Sequence b has queries queries_from[b] to queries_from[b + 1], or query b without queries_from.
struct Texts {
  void* queries;
  void* queries_from;
  void* out;
  void* lse;
  int64_t count, heads, kept, width, causal, rotary_mode;
  double scale;
};

// Computes attention of all sequences; `tokens_of` returns a sequence's keys and values of a head.
void Attend(const Texts& texts, bool resident,
            const std::function<std::vector<Token>(int64_t sequence, int64_t head)>& tokens_of) {
  Do([&] {
    if (texts.rotary_mode) {
      throw DeviceError("queries and keys come without their rotary embeddings");
    }
    const auto* from = static_cast<const std::int32_t*>(texts.queries_from);
    const int64_t group = texts.heads / texts.kept, width = texts.width;
    for (int64_t b = 0; b < texts.count; ++b) {
      const int64_t first = from ? from[b] : b, length = from ? from[b + 1] - first : 1;
      for (int64_t head = 0; head < texts.kept; ++head) {
        const std::vector<Token> tokens = tokens_of(b, head);
        const int64_t known = static_cast<int64_t>(tokens.size());
        std::vector<Query> queries;
        for (int64_t i = 0; i < length; ++i) {
          const int64_t seen =
              texts.causal ? std::clamp<int64_t>(known - length + i + 1, 0, known) : known;
          for (int64_t g = 0; g < group; ++g) {
            const int64_t row = (first + i) * texts.heads + head * group + g;
            queries.push_back({static_cast<const float*>(texts.queries) + row * width,
                               static_cast<std::uint64_t>(seen),
                               static_cast<float*>(texts.out) + row * width,
                               static_cast<float*>(texts.lse) + row});
          }
        }
        if (!queries.empty()) {
          Running().attention.Attend(queries, tokens, width, static_cast<float>(texts.scale),
                                     resident);
        }
      }
    }
  });
}

// Returns as JSON the device's counters since the start, and the tokens written for attention.
tvm::ffi::String Counters() {
  std::ostringstream text;
  Do([&] {
    text << "{" << Running().products->Counters()
         << ",\"tokens_written\":" << Running().attention.written() << "}";
  });
  return text.str();
}

// Computes attention to keys and values [all, kept, width] of the call; sequence b has tokens
// keys_from[b] to keys_from[b + 1].
void AttendRagged(void* queries, void* queries_from, void* keys, void* values, void* keys_from,
                  void* out, void* lse, int64_t count, int64_t heads, int64_t kept, int64_t width,
                  int64_t causal, int64_t rotary_mode, double scale) {
  const auto* from = static_cast<const std::int32_t*>(keys_from);
  const auto tokens_of = [&](int64_t b, int64_t head) {
    std::vector<Token> tokens;
    for (int64_t token = from[b]; token < from[b + 1]; ++token) {
      const int64_t at = (token * kept + head) * width;
      tokens.push_back(
          {static_cast<const float*>(keys) + at, static_cast<const float*>(values) + at});
    }
    return tokens;
  };
  Attend({queries, queries_from, out, lse, count, heads, kept, width, causal, rotary_mode, scale},
         false, tokens_of);
}

// Computes attention to the pages [all, 2, kept, page, width] of a cache. Sequence b has the pages
// page_values[page_from[b]] to page_values[page_from[b + 1] - 1]; its last page has last[b] tokens.
void AttendPaged(void* queries, void* queries_from, void* pages, void* page_from, void* page_values,
                 void* last, void* out, void* lse, int64_t count, int64_t heads, int64_t kept,
                 int64_t page, int64_t width, int64_t causal, int64_t rotary_mode, double scale) {
  const auto* from = static_cast<const std::int32_t*>(page_from);
  const auto* listed = static_cast<const std::int32_t*>(page_values);
  const auto tokens_of = [&](int64_t b, int64_t head) {
    std::vector<Token> tokens;
    for (int64_t p = from[b]; p < from[b + 1]; ++p) {
      const int64_t used = p + 1 < from[b + 1] ? page : static_cast<const std::int32_t*>(last)[b];
      const float* keys =
          static_cast<const float*>(pages) + (listed[p] * 2 * kept + head) * page * width;
      for (int64_t token = 0; token < used; ++token) {
        tokens.push_back({keys + token * width, keys + (kept * page + token) * width});
      }
    }
    return tokens;
  };
  Attend({queries, queries_from, out, lse, count, heads, kept, width, causal, rotary_mode, scale},
         true, tokens_of);
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def("mlc_rvv.accelerator.load_int8", LoadInt8)
      .def("mlc_rvv.accelerator.load_float32", LoadFloat)
      .def("mlc_rvv.accelerator.multiply", Multiply)
      .def("mlc_rvv.accelerator.attend_ragged", AttendRagged)
      .def("mlc_rvv.accelerator.attend_paged", AttendPaged)
      .def("mlc_rvv.accelerator.counters", Counters);
}

}  // namespace accelerator
