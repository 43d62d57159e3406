# SPDX-License-Identifier: Apache-2.0

set(warnings -Wall -Wextra -Werror)
# libbacktrace is not built: an error's message says enough on a board.
set(tvm_defines -DTVM_FFI_EXPORTS -DTVM_RUNTIME_EXPORTS -DTVM_FFI_USE_LIBBACKTRACE=0
                -DTVM_FFI_BACKTRACE_ON_SEGFAULT=0)

# Objects of some sources, and two lists of them for other builders: artefacts/NAME.txt has their paths,
# artefacts/NAME.names their names, which do not depend on where the sources are.
#   ROOT      folder of the sources
#   SOURCES   their paths
#   PLACES    FOLDER=NAME: headers name themselves in messages by NAME, not by where they are here
#   HEADERS   that most of the sources read: they are compiled once
#   OPTIONS   of the compiler
#   INCLUDES  folders of other headers
#   BATCH     number of sources that are compiled as one; their static names must differ
function(add_objects name)
  cmake_parse_arguments(PARSE_ARGV 1 a "" "ROOT;BATCH" "SOURCES;PLACES;HEADERS;OPTIONS;INCLUDES")
  set(sources)
  set(names)
  foreach(source IN LISTS a_SOURCES)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${a_ROOT})
    list(APPEND sources ${source})
  endforeach()
  list(SORT sources)
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${sources})
  set(maps ${a_PLACES} ${PROJECT_BINARY_DIR}=build)
  list(TRANSFORM maps PREPEND -ffile-prefix-map=)
  target_compile_options(${name} PRIVATE ${a_OPTIONS} ${maps})
  target_include_directories(${name} PRIVATE ${a_ROOT})
  target_include_directories(${name} SYSTEM PRIVATE ${a_INCLUDES})
  target_precompile_headers(${name} PRIVATE ${a_HEADERS})
  set(joined 0)
  foreach(source IN LISTS sources)
    get_source_file_property(alone ${source} SKIP_UNITY_BUILD_INCLUSION)
    if(a_BATCH AND NOT alone)
      math(EXPR joined "${joined} + 1")
      continue()
    endif()
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${a_ROOT})
    cmake_path(REMOVE_EXTENSION source LAST_ONLY)
    string(REPLACE / - source ${source})
    string(APPEND names "${source}.o\n")
  endforeach()
  # CMake lists the last batch first, then the sources that are in none.
  if(joined)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${a_BATCH})
    math(EXPR last "(${joined} - 1) / ${a_BATCH}")
    foreach(batch RANGE ${last})
      string(PREPEND names "${name}-${batch}.o\n")
    endforeach()
  endif()
  file(WRITE ${PROJECT_BINARY_DIR}/artefacts/${name}.names "${names}")
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/artefacts/${name}.txt
       CONTENT "$<JOIN:$<FILTER:$<TARGET_OBJECTS:${name}>,EXCLUDE,[.]pch$>,\n>\n")
endfunction()
