// SPDX-License-Identifier: Apache-2.0
// The server's description of itself. The tables of fields are those by which it reads requests.
#pragma once

#include <string>
#include <vector>

#include "api/fields.h"
#include "input/json.h"

namespace rvv_runner {

// The description of a path.
struct PathAbout {
  std::string method;
  std::string path;  // parameters begin with a colon
  std::string about;
  bool open = false;                    // needs no key
  std::string request = {};             // name of the body's schema; empty: no body
  std::vector<FieldAbout> fields = {};  // of the body
  std::string answer = {};              // name of the answer's schema, or its media type
  std::string event = {};               // name of the schema of a stream's events; empty: no stream
};

// All paths, each once.
const std::vector<PathAbout>& ApiPaths();

// The API field by field, as a page in Markdown.
std::string ApiPage();

// An OpenAPI document.
OrderedJson OpenApi();

}  // namespace rvv_runner
