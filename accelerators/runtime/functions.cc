// SPDX-License-Identifier: Apache-2.0
// What a compiled model calls where its linear layers are on the accelerator: packed functions,
// whose names the pass CallAccelerator knows.
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <cstdint>
#include <functional>
#include <mutex>

#include "runtime/linear.h"

namespace accelerator {
namespace {

// One device for the program, made when the first weight comes.
LinearLayers& Layers() {
  static LinearLayers layers(mlc_rvv_accelerator_image);
  return layers;
}

std::mutex& Lock() {
  static std::mutex lock;
  return lock;
}

void Do(const std::function<void()>& action) {
  const std::lock_guard<std::mutex> held(Lock());
  try {
    action();
  } catch (const DeviceError& error) {
    TVM_FFI_THROW(RuntimeError) << "accelerator " << mlc_rvv_accelerator_image.name << ": "
                                << error.what();
  }
}

// Matrices [count, outputs, width] of int8, each row followed by the float32 of its scale.
void LoadInt8(void* weights, int64_t count, int64_t outputs, int64_t width) {
  Do([&] {
    if (width <= static_cast<int64_t>(sizeof(float))) throw DeviceError("weights without a row");
    const auto* data = static_cast<const std::int8_t*>(weights);
    for (int64_t i = 0; i < count; ++i, data += outputs * width) {
      Layers().LoadInt8(data, data, outputs, width - sizeof(float));
    }
  });
}

// Matrices [count, outputs, inputs] of float32.
void LoadFloat(void* weights, int64_t count, int64_t outputs, int64_t inputs) {
  Do([&] {
    const float* data = static_cast<const float*>(weights);
    for (int64_t i = 0; i < count; ++i, data += outputs * inputs) {
      Layers().Load(data, data, outputs, inputs);
    }
  });
}

// out [rows, outputs] = values [rows, inputs] by the transpose of weights [outputs, inputs].
void Multiply(void* out, void* values, void* weights, int64_t rows, int64_t outputs,
              int64_t inputs) {
  Do([&] {
    Layers().Multiply(weights, static_cast<const float*>(values), static_cast<float*>(out), rows,
                      outputs, inputs);
  });
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def("mlc_rvv.accelerator.load_int8", LoadInt8)
      .def("mlc_rvv.accelerator.load_float32", LoadFloat)
      .def("mlc_rvv.accelerator.multiply", Multiply);
}

}  // namespace accelerator
