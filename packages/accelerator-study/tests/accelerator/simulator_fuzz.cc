// SPDX-License-Identifier: Apache-2.0
// Runs the cases of a file on the functional simulator, each on memory of exactly its own size, and
// prints a line for each: its message, or nothing where it ran to its end.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "vta/functional.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::ifstream file(argv[1], std::ios::binary);
  std::vector<char> data{std::istreambuf_iterator<char>(file), {}};
  AcceleratorSpec spec;
  std::memcpy(&spec, data.data(), sizeof spec);
  for (size_t at = sizeof spec; at < data.size();) {
    std::uint32_t sizes[2];
    std::memcpy(sizes, data.data() + at, sizeof sizes);
    at += sizeof sizes;
    std::vector<std::uint8_t> memory(data.begin() + at, data.begin() + at + sizes[0]);
    at += sizes[0];
    std::vector<std::uint8_t> stream(data.begin() + at, data.begin() + at + sizes[1]);
    at += sizes[1];
    AcceleratorCounts counts{};
    char message[512] = "";
    void* device = accelerator_create(&spec);
    int failed = accelerator_run(device, memory.data(), memory.size(), stream.data(),
                                 stream.size() / 16, 0, &counts, message, sizeof message);
    accelerator_destroy(device);
    if ((failed != 0) != (message[0] != 0)) return 3;
    std::puts(message);
  }
  return 0;
}
