// SPDX-License-Identifier: Apache-2.0
// The server of several models: FOLDER MEMORY CACHE (in bytes) [KEY]; any free port.
#include <iostream>
#include <string>

#include "input/heap.h"
#include "server/listening.h"
#include "server/model_servers.h"

using namespace rvv_runner;

int main(int argc, char** argv) {
  try {
    ReturnFreedMemory();
    StopSignals signals;
    ServerOptions options;
    options.port = 0;
    if (argc > 4) options.keys = {argv[4]};
    HttpServer server(options);
    server.Bind();
    const auto more = [](const StoredModel& model) {
      return std::vector<std::string>{"--of", model.name};
    };
    ModelServers models(ModelsIn(argv[1]), more, std::stoll(argv[2]), std::stoll(argv[3]));
    signals.OnReload([&] { models.Reload(); });
    ServeUntilStopped(&server, &models, &signals, std::cout);
  } catch (const std::exception& error) {
    std::cerr << "scripted_router: " << error.what() << "\n";
    return 2;
  }
  return 0;
}
