// SPDX-License-Identifier: Apache-2.0
#include "text/tool_format.h"

namespace rvv_runner {

ToolFormat ReadToolFormat(const Json& about) {
  return {about.at("begin"),   about.at("open"),      about.at("middle"),
          about.at("close"),   about.at("id_length"), about.at("after_id"),
          about.at("between"), about.at("end"),       about.at("parallel")};
}

}  // namespace rvv_runner
