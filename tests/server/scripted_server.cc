// SPDX-License-Identifier: Apache-2.0
// The server with a scripted answerer: TOKENIZER QUEUE PACE HOST [KEY [CORS [strict]]];
// any free port.
#include <iostream>
#include <string>

#include "input/heap.h"
#include "input/read_file.h"
#include "scripted_answerer.h"
#include "server/listening.h"

using namespace rvv_runner;

int main(int argc, char** argv) {
  try {
    ReturnFreedMemory();
    StopSignals signals;
    const Tokenizer tokenizer(ParseTokenizerFile(ReadFile(argv[1]), argv[1]));
    ServerOptions options;
    options.host = argv[4];
    options.port = 0;
    if (argc > 5) options.key = argv[5];
    if (argc > 6) options.cors = argv[6];
    options.connections = 64;
    ScriptedAnswerer answerer(tokenizer, std::stoul(argv[2]), std::stod(argv[3]));
    GrammarCompiler grammars(tokenizer, static_cast<int64_t>(tokenizer.size()));
    HttpServer server(options);
    server.Bind();
    const Served served{"scripted", &tokenizer, &answerer, &grammars, {}, 4096, "other", argc > 7};
    ServeUntilStopped(&server, served, &signals, std::cout);
  } catch (const std::exception& error) {
    std::cerr << "scripted_server: " << error.what() << "\n";
    return 2;
  }
}
