// SPDX-License-Identifier: Apache-2.0
// The server with a scripted answerer: TOKENIZER QUEUE PACE HOST [KEY,KEY... [CORS [MODE]]]; MODE is
// strict, stuck or encodes; any free port; SCRIPTED_NAME names the model. `stuck`: it goes on after the server has stopped, as in a long call of the model.
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "input/heap.h"
#include "input/read_file.h"
#include "scripted_answerer.h"
#include "server/listening.h"

using namespace rvv_runner;

static std::vector<std::string> Keys(const std::string& list) {
  std::istringstream words(list);
  std::vector<std::string> keys;
  for (std::string key; std::getline(words, key, ',');) keys.push_back(key);
  return keys;
}

int main(int argc, char** argv) {
  try {
    ReturnFreedMemory();
    StopSignals signals;
    const Tokenizer tokenizer(ParseTokenizerFile(ReadFile(argv[1]), argv[1]));
    ServerOptions options;
    options.host = argv[4];
    options.port = 0;
    if (argc > 5) options.keys = Keys(argv[5]);
    if (argc > 6) options.cors = argv[6];
    options.connections = 64;
    const std::string more = argc > 7 ? argv[7] : "";
    ScriptedAnswerer answerer(tokenizer, std::stoul(argv[2]), std::stod(argv[3]));
    GrammarCompiler grammars(tokenizer, static_cast<int64_t>(tokenizer.size()));
    HttpServer server(options);
    server.Bind();
    Accepted aliases({"other"});
    const char* name = std::getenv("SCRIPTED_NAME");
    Served served{
        name ? name : "scripted", &tokenizer, &answerer, &grammars,        {}, 4096, &aliases,
        more == "strict",         0,          {},        more == "encodes"};
    served.queue = std::stoul(argv[2]);
    ServeUntilStopped(&server, served, &signals, std::cout);
    if (more == "stuck") std::this_thread::sleep_for(std::chrono::minutes(1));
  } catch (const std::exception& error) {
    std::cerr << "scripted_server: " << error.what() << "\n";
    return 2;
  }
  return 0;
}
