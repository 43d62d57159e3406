// SPDX-License-Identifier: Apache-2.0
// Prepares a picture. Arguments: a PNG or JPEG file, and how in the JSON of a library's metadata. The
// prepared pixels [3, size, size] go to the standard output; exit code 2 for a file that is refused.
#include <iostream>

#include "input/errors.h"
#include "input/read_file.h"
#include "picture/preparation.h"

int main(int, char** argv) {
  using namespace rvv_runner;
  try {
    const Preparation how = ReadPreparation(ParseJson(argv[2], "how"));
    const PreparedPicture prepared = Prepare(DecodePicture(ReadFile(argv[1])), how);
    std::cout.write(reinterpret_cast<const char*>(prepared.pixels.data()),
                    static_cast<std::streamsize>(prepared.pixels.size()));
  } catch (const InputError& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
  return 0;
}
