# SPDX-License-Identifier: Apache-2.0
# clang and lld for riscv64, with Debian's packages libc6-dev-riscv64-cross and libstdc++-12-dev-riscv64-cross.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR riscv64)
find_program(clang NAMES clang-19 clang-20 clang-21 clang-22 clang REQUIRED)
string(REGEX REPLACE "clang(-[0-9]+)?$" "clang++\\1" clangxx ${clang})
set(CMAKE_C_COMPILER ${clang})
set(CMAKE_CXX_COMPILER ${clangxx})
# Never with vectors: a scalable spill in a frame makes libgcc's unwinder abort.
set(CMAKE_C_FLAGS_INIT "--target=riscv64-linux-gnu -march=rv64gc -mabi=lp64d")
set(CMAKE_CXX_FLAGS_INIT ${CMAKE_C_FLAGS_INIT})
set(CMAKE_EXE_LINKER_FLAGS_INIT -fuse-ld=lld)
