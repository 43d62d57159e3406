// SPDX-License-Identifier: Apache-2.0
// The little of dmlc's logging that VTA's simulator uses: a failed check ends the program.
#pragma once
#include <cstdlib>
#include <iostream>

struct FailedCheck {
  ~FailedCheck() {
    std::cerr << std::endl;
    std::abort();
  }
  template <typename T>
  FailedCheck& operator<<(const T& value) {
    std::cerr << value;
    return *this;
  }
};

#define CHECK(condition) \
  if (!(condition)) FailedCheck() << #condition << ": "
#define CHECK_EQ(a, b) CHECK((a) == (b))
#define CHECK_NE(a, b) CHECK((a) != (b))
#define CHECK_LT(a, b) CHECK((a) < (b))
#define CHECK_LE(a, b) CHECK((a) <= (b))
#define LOG(severity) FailedCheck()
