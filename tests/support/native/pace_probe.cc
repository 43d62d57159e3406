// SPDX-License-Identifier: Apache-2.0
// Reads a prompt at the pace of a machine that takes CALL seconds a call and ROW seconds a row, the
// first call SLOW times as long. Arguments: MOST CALL ROW SLOW DECODE CALLS; DECODE seconds a decode
// call of an answer beside it, 0: no answer. A line for each call: its rows, its seconds.
#include <iostream>
#include <string>

#include "engine/pace.h"

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  const double call = std::stod(argv[2]), row = std::stod(argv[3]), decode = std::stod(argv[5]);
  double slow = std::stod(argv[4]);
  rvv_runner::Pace pace(std::stol(argv[1]), true);
  if (decode > 0) pace.Decoded(1, decode);
  for (int i = 0; i < std::stoi(argv[6]); ++i) {
    const int64_t rows = pace.Rows(decode > 0);
    const double seconds = (call + row * static_cast<double>(rows)) * slow;
    std::cout << rows << " " << seconds << "\n";
    pace.Read(rows, seconds);
    slow = 1;
  }
  return 0;
}
