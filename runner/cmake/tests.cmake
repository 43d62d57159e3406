# SPDX-License-Identifier: Apache-2.0
# One program of all C++ tests: native_tests NAME ARGUMENTS. Python's tests call the same program.
set(native ${PROJECT_SOURCE_DIR}/../tests/support/native)
set(scripted ${PROJECT_SOURCE_DIR}/../tests/server)
set(programs ${native}/answer_probe.cc ${native}/cpus_probe.cc ${native}/grammar_probe.cc ${native}/pace_probe.cc
             ${native}/picture_probe.cc
             ${native}/sampling_probe.cc ${native}/tokenizer_probe.cc ${native}/unit.cc ${scripted}/scripted_router.cc
             ${scripted}/scripted_server.cc)
set(test_options ${instrumented} ${warnings} ${optimised})

function(add_test_program name)
  add_executable(${name} ${ARGN})
  target_compile_options(${name} PRIVATE ${test_options})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${scripted})
  target_include_directories(${name} SYSTEM PRIVATE ${of_server})
  target_link_libraries(${name} PRIVATE text jinja)
  if(CMAKE_CROSSCOMPILING)
    target_link_options(${name} PRIVATE -static)
  endif()
endfunction()

foreach(source IN LISTS programs)
  cmake_path(GET source STEM stem)
  set_source_files_properties(${source} PROPERTIES COMPILE_DEFINITIONS main=${stem}_main)
endforeach()
add_test_program(native_tests ${native}/native_tests.cc ${programs})
target_link_libraries(native_tests PRIVATE server httplib xgrammar)
target_link_options(native_tests PRIVATE ${instrumented} -pthread)
# Alone, for the emulator: the server is not compiled for it.
add_test_program(tokenizer_probe EXCLUDE_FROM_ALL ${native}/native_tests.cc ${native}/tokenizer_probe.cc)
target_compile_options(tokenizer_probe PRIVATE "-DPROGRAMS(X)=X(tokenizer_probe)")
target_link_options(tokenizer_probe PRIVATE ${instrumented} -pthread)
foreach(name memory-of-groups utf8 md5 json unicode schema answers earlier-calls huge-pages memory-nodes word-wrap history-search first-starts defaults waits-of-workers)
  add_test(NAME ${name} COMMAND native_tests unit ${name})
endforeach()

# libFuzzer comes with clang alone, on this machine.
if(is_clang AND RUNNER_SANITIZERS AND NOT CMAKE_CROSSCOMPILING)
  foreach(name runner_fuzz server_fuzz)
    add_test_program(${name} EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/../tests/fuzz/native/${name}.cc)
    target_link_libraries(${name} PRIVATE server httplib xgrammar)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer,${RUNNER_SANITIZERS} -pthread)
  endforeach()
endif()
