# SPDX-License-Identifier: Apache-2.0
# The libraries, in the archives that VERSIONS.lock and uv.lock pin. An unpacked archive can be named instead:
# -DFETCHCONTENT_SOURCE_DIR_LLAMA_CPP=FOLDER, and _XGRAMMAR, _JSONCONS, _NLOHMANN_JSON; an archive by -DRUNNER_ARCHIVES=FOLDER.
include(FetchContent)

set(RUNNER_ARCHIVES "" CACHE PATH "folder of downloaded archives; empty: they are downloaded")
set(lock ${PROJECT_SOURCE_DIR}/../VERSIONS.lock)

# The value of a key in a section of VERSIONS.lock.
function(read_pin variable section key)
  file(STRINGS ${lock} lines)
  set(here FALSE)
  foreach(line IN LISTS lines)
    if(line MATCHES "^\\[(.*)\\]$")
      string(COMPARE EQUAL "${CMAKE_MATCH_1}" "${section}" here)
    elseif(here AND line MATCHES "^${key} = \"(.*)\"$")
      set(${variable} ${CMAKE_MATCH_1} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "${lock} has no ${key} in [${section}]")
endfunction()

# Get an archive: its sources are in ${name}_SOURCE_DIR.
function(fetch name url sha256 file)
  if(RUNNER_ARCHIVES)
    set(url ${RUNNER_ARCHIVES}/${file})
  endif()
  string(REGEX REPLACE "\\.whl$" ".zip" as ${file})
  FetchContent_Declare(${name} URL ${url} URL_HASH SHA256=${sha256} DOWNLOAD_NAME ${as}
                       DOWNLOAD_EXTRACT_TIMESTAMP OFF SOURCE_SUBDIR none)
  FetchContent_MakeAvailable(${name})
  set(${name}_SOURCE_DIR ${${name}_SOURCE_DIR} PARENT_SCOPE)
endfunction()

set(index https://files.pythonhosted.org/packages)
read_pin(file peers."llama.cpp" file)
read_pin(sha256 peers."llama.cpp" sha256)
fetch(llama_cpp ${index}/ec/e9/e7de2b0463ea3ffbf0ede6cb21b58c1258a8f6521aae45ca773a59fe7cf3/${file} ${sha256} ${file})
read_pin(file libraries.xgrammar file)
read_pin(sha256 libraries.xgrammar sha256)
fetch(xgrammar ${index}/03/0f/29f521535729be740779c2c98b630ef6607cf28be9b669895dd2b821ff63/${file} ${sha256} ${file})
read_pin(file libraries.jsoncons file)
read_pin(sha256 libraries.jsoncons sha256)
fetch(jsoncons ${index}/e4/38/a2d7af8b1e87bd716711bdaef6bc401008ecb2ce9e79a47a0965de9b2f26/${file} ${sha256} ${file})
set(file nlohmann_json-3.12.0-py3-none-any.whl)
fetch(nlohmann_json ${index}/51/69/a42fddc89a6de959b65b27a15d69de85e88d2f99884e00b1b02c12dce301/${file}
      5f6132720fb25d0d70bf0742f8397b49a540dcc193e7312a914f6aa49f054810 ${file})

set(json_includes ${nlohmann_json_SOURCE_DIR}/nlohmann_json/include)
set(json_place ${json_includes}=json)
set(jsoncons_includes ${jsoncons_SOURCE_DIR}/src/include)
set(jsoncons_place ${jsoncons_includes}=jsoncons)
# Libraries are never instrumented: that would take minutes. The levels are lower on this machine, where only tests
# run them. HTTP's cost is the network's.
if(CMAKE_CROSSCOMPILING)
  set(levels -O1 -O2)
else()
  set(levels -O0 -O1)
endif()
list(GET levels 0 low)
list(GET levels 1 high)

set(httplib_includes ${llama_cpp_SOURCE_DIR}/vendor/llama.cpp/vendor/cpp-httplib)
set(httplib_place ${httplib_includes}=httplib)
add_objects(httplib ROOT ${httplib_includes} SOURCES httplib.cpp PLACES ${httplib_place}
            OPTIONS ${low} -g0 -w)

# A header; picture/picture.cc compiles it as a part of ours.
set(stb_includes ${llama_cpp_SOURCE_DIR}/vendor/llama.cpp/vendor/stb)
set(stb_place ${stb_includes}=stb)

# llama.cpp's engine of chat templates, with one header of ours for an assertion of ggml's.
set(common ${llama_cpp_SOURCE_DIR}/vendor/llama.cpp/common)
set(jinja_includes ${common} ${PROJECT_SOURCE_DIR}/cmake/include)
set(jinja_place ${common}=jinja)
file(GLOB jinja ${common}/jinja/*.cpp)
list(FILTER jinja EXCLUDE REGEX /caps\\.cpp$)
# In a batch, its specialisations of a template would follow the first use.
set_source_files_properties(${common}/json.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
add_objects(jinja ROOT ${common} SOURCES ${jinja} json.cpp unicode.cpp
            PLACES ${jinja_place} ${json_place} BATCH ${batch} OPTIONS ${low} -g0 -w
            INCLUDES ${json_includes} ${PROJECT_SOURCE_DIR}/cmake/include)

set(xgrammar_includes ${xgrammar_SOURCE_DIR}/include ${xgrammar_SOURCE_DIR}/3rdparty/dlpack/include)
set(xgrammar_place ${xgrammar_SOURCE_DIR}=xgrammar)
file(GLOB_RECURSE xgrammar ${xgrammar_SOURCE_DIR}/cpp/*.cc)
# Without Python's binding, and without Lark grammars, which grammar/compiler.cc refuses.
list(FILTER xgrammar EXCLUDE REGEX "/cpp/(tvm_ffi/|lark_converter\\.cc$)")
# They run once a schema, and optimising them takes much of the compiler's time.
if(NOT CMAKE_CROSSCOMPILING)
  set(once ${xgrammar_SOURCE_DIR}/cpp/json_schema_converter.cc ${xgrammar_SOURCE_DIR}/cpp/structural_tag.cc)
  set_source_files_properties(${once} PROPERTIES SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON
                              COMPILE_OPTIONS ${low})
endif()
add_objects(xgrammar ROOT ${xgrammar_SOURCE_DIR} SOURCES ${xgrammar} PLACES ${xgrammar_place} BATCH ${batch}
            HEADERS <algorithm> <functional> <memory> <optional> <string> <unordered_map> <variant>
                    <vector> <picojson.h>
            # The runner decides what becomes of a warning.
            OPTIONS ${high} -g0 -w -DXGRAMMAR_LOG_CUSTOMIZE=1 -DXGRAMMAR_ENABLE_CPPTRACE=0
                    -DXGRAMMAR_ENABLE_INTERNAL_CHECK=0
            INCLUDES ${xgrammar_includes} ${xgrammar_SOURCE_DIR}/3rdparty/picojson)
set_target_properties(jinja xgrammar PROPERTIES CXX_STANDARD 17)
