// SPDX-License-Identifier: Apache-2.0
// Runs a stream on apache/tvm-vta's functional simulator: STREAM MEMORY, the latter in place. The
// first allocation there has the address 4096, so that is where MEMORY begins.
#include <vta/driver.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

namespace {

std::string Read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::string stream = Read(argv[1]), memory = Read(argv[2]);
  void* data = VTAMemAlloc(memory.size(), 0);
  void* code = VTAMemAlloc(stream.size(), 0);
  if (VTAMemGetPhyAddr(data) != 4096) return 3;
  std::memcpy(data, memory.data(), memory.size());
  std::memcpy(code, stream.data(), stream.size());
  VTADeviceHandle device = VTADeviceAlloc();
  int failed = VTADeviceRun(device, VTAMemGetPhyAddr(code), stream.size() / 16, 0);
  VTADeviceFree(device);
  std::ofstream(argv[2], std::ios::binary).write(static_cast<char*>(data), memory.size());
  return failed;
}
