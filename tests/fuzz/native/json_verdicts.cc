// SPDX-License-Identifier: Apache-2.0
// Reads texts, each ended by a byte 0, from standard input; prints 1 or 0 for each: JSON or not.
#include <iostream>
#include <string>

#include "input/errors.h"
#include "input/json.h"

int main() {
  std::string text;
  while (std::getline(std::cin, text, '\0')) {
    try {
      rvv_runner::ParseJson(text, "text");
      std::cout << '1';
    } catch (const rvv_runner::InputError&) {
      std::cout << '0';
    }
  }
}
