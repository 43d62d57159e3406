# SPDX-License-Identifier: Apache-2.0
# TVM's runtime, Relax VM and paged KV cache, from a patched tree in git's layout.
set(RUNNER_TVM_FFI "" CACHE PATH "folder with include/ and src/ of tvm_ffi; empty: it is downloaded")
set(RUNNER_TVM_SHIMS ${PROJECT_SOURCE_DIR}/../packages/crosslab/src/crosslab/native/shims CACHE STRING
    "folders of files that the tree lacks, in its layout")
# random and sort are what sampling calls.
set(RUNNER_TVM_SOURCES src/runtime/*.cc src/runtime/vm/*.cc src/runtime/memory/*.cc
    src/runtime/extra/contrib/random/random.cc src/runtime/extra/contrib/sort/sort.cc
    ffi/src/ffi/*.cc ffi/src/ffi/extra/*.cc CACHE STRING "what of the tree is compiled")

if(NOT EXISTS ${RUNNER_TVM}/src/runtime/vm/vm.cc)
  message(FATAL_ERROR "${RUNNER_TVM} has no runtime sources (src/runtime); make the patched tree with: "
                      "python3 scripts/bootstrap.py apply_patches")
endif()
if(NOT RUNNER_TVM_FFI)
  set(file apache_tvm_ffi-0.1.14.post1.tar.gz)
  fetch(tvm_ffi ${index}/ed/50/2b9d308f34843b99e763ac7d510ba6400dbb3e86b3f04fd206be0dc9cd46/${file}
        8ebd92dc97cdcb22ab494aa252c868ddd6a9b6c89be69188562e0f236652429f ${file})
  set(RUNNER_TVM_FFI ${tvm_ffi_SOURCE_DIR})
  set(dlpack ${tvm_ffi_SOURCE_DIR}/3rdparty/dlpack/include)
endif()

# One tree of all sources: some include others by relative paths. A shim does not replace a file of TVM's,
# and of two shims the first folder's is taken.
set(tvm ${PROJECT_BINARY_DIR}/tvm)
file(REMOVE_RECURSE ${tvm})  # a file that is gone must not be compiled; copies keep their times
file(COPY ${RUNNER_TVM}/src/runtime DESTINATION ${tvm}/src)
file(COPY ${RUNNER_TVM}/include ${dlpack} DESTINATION ${tvm})
file(COPY ${RUNNER_TVM_FFI}/src/ffi DESTINATION ${tvm}/ffi/src)
file(COPY ${RUNNER_TVM_FFI}/include DESTINATION ${tvm}/ffi)
set(taken)
foreach(folder IN LISTS RUNNER_TVM_SHIMS)
  file(GLOB_RECURSE shims RELATIVE ${folder} ${folder}/*.h ${folder}/*.cc)
  foreach(shim IN LISTS shims)
    if(shim IN_LIST taken OR (shim MATCHES "^(src/runtime|include)/" AND EXISTS ${RUNNER_TVM}/${shim}))
      continue()
    endif()
    list(APPEND taken ${shim})
    cmake_path(GET shim PARENT_PATH parent)
    file(COPY ${folder}/${shim} DESTINATION ${tvm}/${parent})
  endforeach()
endforeach()
list(TRANSFORM RUNNER_TVM_SOURCES PREPEND ${tvm}/ OUTPUT_VARIABLE patterns)
file(GLOB sources ${patterns})
list(FILTER sources EXCLUDE REGEX /backtrace_win\\.cc$)
if(RUNNER_SANITIZERS)
  set(runtime_instrumented -fsanitize=${RUNNER_SANITIZERS} -fno-sanitize-recover=all -fno-omit-frame-pointer)
endif()
set(runtime_headers algorithm functional memory string unordered_map vector tvm/ffi/any.h tvm/ffi/error.h
    tvm/ffi/function.h tvm/ffi/optional.h tvm/ffi/container/array.h tvm/ffi/container/map.h
    tvm/ffi/container/shape.h tvm/ffi/container/tensor.h tvm/ffi/extra/module.h tvm/ffi/string.h
    tvm/ffi/reflection/registry.h)
list(TRANSFORM runtime_headers REPLACE "(.+)" "<\\1>")
add_objects(tvm_runtime ROOT ${tvm} SOURCES ${sources} PLACES ${tvm}=. HEADERS ${runtime_headers}
            BATCH ${batch} OPTIONS -O2 -g0 -w ${tvm_defines} ${runtime_instrumented})
target_include_directories(tvm_runtime PRIVATE ${tvm}/include ${tvm}/3rdparty/compiler-rt ${tvm}/ffi/include)
if(NOT RUNNER_TVM_INCLUDES)
  set(RUNNER_TVM_INCLUDES ${tvm}/include ${tvm}/ffi/include)
endif()
