// SPDX-License-Identifier: Apache-2.0
// Replaces a header that the TVM wheel lacks: conversion between IEEE 754 binary
// formats in integer arithmetic, under the names that TVM's sources call.
#pragma once

#include <cstdint>
#include <cstring>

namespace mlc_rvv_fp {

// A binary format in an unsigned integer `Rep`, with `kFraction` bits of fraction.
template <typename Rep, int kFraction>
struct Format {
  static constexpr int kExponentBits = static_cast<int>(sizeof(Rep)) * 8 - kFraction - 1;
  static constexpr uint64_t kExponentMax = (uint64_t{1} << kExponentBits) - 1;
  static constexpr int kBias = static_cast<int>(kExponentMax >> 1);
  static constexpr uint64_t kFractionMask = (uint64_t{1} << kFraction) - 1;
  static constexpr uint64_t kInfinity = kExponentMax << kFraction;
  static constexpr uint64_t kQuiet = uint64_t{1} << (kFraction - 1);
  static constexpr uint64_t kSign = uint64_t{1} << (sizeof(Rep) * 8 - 1);
};

template <typename To, typename From>
To Bits(const From& value) {
  static_assert(sizeof(To) == sizeof(From));
  To bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Returns value / 2^shift, rounded to nearest, ties to even.
inline uint64_t RoundedShift(uint64_t value, int shift) {
  if (shift > 63) return 0;
  const uint64_t whole = value >> shift;
  const uint64_t rest = value & ((uint64_t{1} << shift) - 1);
  const uint64_t half = uint64_t{1} << (shift - 1);
  return whole + (rest > half || (rest == half && (whole & 1)) ? 1 : 0);
}

}  // namespace mlc_rvv_fp

// Converts to a narrower format: rounds to nearest even, overflows to infinity, keeps quiet NaNs.
template <typename SRC_T, typename SRC_REP_T, int SRC_SIG_BITS, typename DST_T, typename DST_REP_T,
          int DST_SIG_BITS>
inline DST_T __truncXfYf2__(SRC_T value) {
  using Src = mlc_rvv_fp::Format<SRC_REP_T, SRC_SIG_BITS>;
  using Dst = mlc_rvv_fp::Format<DST_REP_T, DST_SIG_BITS>;
  static_assert(SRC_SIG_BITS > DST_SIG_BITS);
  const uint64_t bits = mlc_rvv_fp::Bits<SRC_REP_T>(value);
  const uint64_t sign = bits & Src::kSign ? Dst::kSign : 0;
  const uint64_t fraction = bits & Src::kFractionMask;
  const uint64_t field = (bits >> SRC_SIG_BITS) & Src::kExponentMax;
  constexpr int kNarrowing = SRC_SIG_BITS - DST_SIG_BITS;
  uint64_t magnitude;
  if (field == Src::kExponentMax) {
    magnitude = Dst::kInfinity | (fraction >> kNarrowing) | (fraction ? Dst::kQuiet : 0);
  } else {
    // A subnormal source is far below the smallest narrow number and rounds to zero below.
    const uint64_t significand = field ? fraction | (Src::kFractionMask + 1) : fraction;
    const int exponent = static_cast<int>(field) - Src::kBias;
    if (exponent > Dst::kBias) {
      magnitude = Dst::kInfinity;
    } else if (exponent >= 1 - Dst::kBias) {
      // The significand's leading one adds 1 to the exponent; a carry may make it infinity.
      const uint64_t below = static_cast<uint64_t>(exponent + Dst::kBias - 1) << DST_SIG_BITS;
      magnitude = below + mlc_rvv_fp::RoundedShift(significand, kNarrowing);
    } else {
      magnitude = mlc_rvv_fp::RoundedShift(significand, kNarrowing + 1 - Dst::kBias - exponent);
    }
  }
  return mlc_rvv_fp::Bits<DST_T>(static_cast<DST_REP_T>(sign | magnitude));
}

// Converts to a wider format, exactly.
template <typename SRC_T, typename SRC_REP_T, int SRC_SIG_BITS, typename DST_T, typename DST_REP_T,
          int DST_SIG_BITS>
inline DST_T __extendXfYf2__(SRC_T value) {
  using Src = mlc_rvv_fp::Format<SRC_REP_T, SRC_SIG_BITS>;
  using Dst = mlc_rvv_fp::Format<DST_REP_T, DST_SIG_BITS>;
  static_assert(SRC_SIG_BITS < DST_SIG_BITS && Src::kBias < Dst::kBias);
  const uint64_t bits = mlc_rvv_fp::Bits<SRC_REP_T>(value);
  const uint64_t sign = bits & Src::kSign ? Dst::kSign : 0;
  uint64_t fraction = bits & Src::kFractionMask;
  const uint64_t field = (bits >> SRC_SIG_BITS) & Src::kExponentMax;
  constexpr int kWidening = DST_SIG_BITS - SRC_SIG_BITS;
  uint64_t magnitude = 0;
  if (field == Src::kExponentMax) {
    magnitude = Dst::kInfinity | (fraction << kWidening) | (fraction ? Dst::kQuiet : 0);
  } else if (field != 0 || fraction != 0) {
    // A subnormal is normal in the wider format once its leading one is in place.
    int exponent = field ? static_cast<int>(field) : 1;
    if (!field) {
      while (!(fraction & (Src::kFractionMask + 1))) {
        fraction <<= 1;
        --exponent;
      }
    }
    const uint64_t wide = static_cast<uint64_t>(exponent - Src::kBias + Dst::kBias);
    magnitude = (wide << DST_SIG_BITS) | ((fraction & Src::kFractionMask) << kWidening);
  }
  return mlc_rvv_fp::Bits<DST_T>(static_cast<DST_REP_T>(sign | magnitude));
}
