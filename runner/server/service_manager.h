// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace rvv_runner {

// Sends a state such as READY=1 to systemd (sd_notify(3)), if systemd started this program and waits
// for it.
void NotifyServiceManager(const std::string& state);

}  // namespace rvv_runner
