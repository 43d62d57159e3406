# SPDX-License-Identifier: Apache-2.0
# text/unicode_tables.h and text/nfc_tables.h, derived from the tokenizers library that uv.lock pins.
set(RUNNER_TABLES "" CACHE PATH "folder of the generated Unicode tables; empty: they are generated")

if(NOT RUNNER_TABLES)
  set(RUNNER_TABLES ${PROJECT_BINARY_DIR}/tables)
  cmake_path(GET PROJECT_SOURCE_DIR PARENT_PATH checkout)
  set(generated ${RUNNER_TABLES}/text/nfc_tables.h)
  set(generator ${checkout}/packages/crosslab/src/crosslab/tokenizer)
  file(GLOB inputs ${checkout}/uv.lock ${generator}/*.py ${generator}/*.toml)
  foreach(input IN LISTS inputs)
    if(${input} IS_NEWER_THAN ${generated})
      set(stale ON)
    endif()
  endforeach()
  if(stale)
    find_program(UV uv HINTS ${checkout}/.bootstrap/bin)
    if(NOT UV)
      find_program(PYTHON3 python3 REQUIRED)
      # It installs uv.
      execute_process(COMMAND ${PYTHON3} ${checkout}/scripts/bootstrap.py OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
      find_program(UV uv HINTS ${checkout}/.bootstrap/bin REQUIRED)
    endif()
    message(STATUS "generating the Unicode tables")
    execute_process(COMMAND ${UV} run --quiet --frozen --project ${checkout} --package mlc-rvv
                            python -m crosslab.tokenizer.unicode_tables ${RUNNER_TABLES}
                    COMMAND_ERROR_IS_FATAL ANY)
  endif()
endif()
