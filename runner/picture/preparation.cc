// SPDX-License-Identifier: Apache-2.0
#include "picture/preparation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "input/errors.h"
#include "input/md5.h"

namespace rvv_runner {
namespace {

// Pillow computes with weights of so many bits behind the point.
constexpr int kBits = 22;
constexpr int64_t kChannels = 3;

double Cubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  return x < 2.0 ? (((x - 5) * x + 8) * x - 4) * a : 0.0;
}

double Linear(double x) { return std::max(0.0, 1.0 - std::abs(x)); }

// The weights of the pixels that one resized pixel is made from.
struct Weights {
  int64_t first;
  std::vector<int32_t> of;
};

// The weights of resized pixels `first` to `first + count` of a side of `to` pixels, from one of
// `from`.
std::vector<Weights> WeightsOf(int64_t from, int64_t to, int64_t first, int64_t count, bool cubic) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double wide = std::max(scale, 1.0);
  const double support = (cubic ? 2.0 : 1.0) * wide;
  std::vector<Weights> all;
  for (int64_t at = first; at < first + count; ++at) {
    const double centre = (static_cast<double>(at) + 0.5) * scale;
    const auto low = std::max<int64_t>(0, static_cast<int64_t>(centre - support + 0.5));
    const auto high = std::min<int64_t>(from, static_cast<int64_t>(centre + support + 0.5));
    std::vector<double> exact;
    double sum = 0;
    for (int64_t i = low; i < high; ++i) {
      const double x = (static_cast<double>(i) - centre + 0.5) * (1.0 / wide);
      exact.push_back(cubic ? Cubic(x) : Linear(x));
      sum += exact.back();
    }
    Weights& one = all.emplace_back(Weights{low, {}});
    for (double weight : exact) {
      if (sum != 0) weight /= sum;
      one.of.push_back(static_cast<int32_t>(weight * (1 << kBits) + (weight < 0 ? -0.5 : 0.5)));
    }
  }
  return all;
}

// The weighted sum of pixels that are `step` numbers apart.
uint8_t Mixed(const Weights& weights, const uint8_t* pixels, int64_t step) {
  int64_t sum = 1 << (kBits - 1);
  for (size_t i = 0; i < weights.of.size(); ++i) {
    sum += int64_t{weights.of[i]} * pixels[static_cast<int64_t>(i) * step];
  }
  return static_cast<uint8_t>(std::clamp<int64_t>(sum >> kBits, 0, 255));
}

int64_t SizeOf(const Json& about, const char* name, const std::string& where) {
  const int64_t size = IntegerOf(Field(about, name, where), where);
  if (size < 1 || size > 1 << 16) throw InputError(where + ": " + name + " is not a size");
  return size;
}

std::array<float, 3> ColoursOf(const Json& about, const char* name, const std::string& where) {
  const Json& list = ListOf(Field(about, name, where), where);
  if (list.size() != kChannels) throw InputError(where + ": " + name + " is not of three colours");
  std::array<float, 3> colours;
  for (size_t i = 0; i < colours.size(); ++i) {
    colours[i] = static_cast<float>(RealOf(list[i], where));
  }
  return colours;
}

}  // namespace

Preparation ReadPreparation(const Json& about) {
  const std::string where = "the library's metadata, picture";
  Preparation how;
  how.shortest = SizeOf(about, "shortest", where);
  how.size = SizeOf(about, "size", where);
  const std::string& filter = TextOf(Field(about, "filter", where), where);
  how.cubic = filter == "bicubic";
  how.scale = static_cast<float>(RealOf(Field(about, "scale", where), where));
  how.mean = ColoursOf(about, "mean", where);
  how.deviation = ColoursOf(about, "deviation", where);
  how.token = static_cast<int32_t>(IntegerOf(Field(about, "token", where), where));
  how.tokens = SizeOf(about, "tokens", where);
  how.bytes = IntegerOf(Field(about, "bytes", where), where);
  if (how.shortest < how.size || how.tokens < 4 || (!how.cubic && filter != "bilinear")) {
    throw InputError(where + ": the preparation is not supported");
  }
  return how;
}

PreparedPicture Prepare(const Picture& picture, const Preparation& how) {
  // Only the part in the middle is resized: a long and narrow picture takes no more memory.
  const auto [low, high] = std::minmax(picture.width, picture.height);
  const auto resized = [&, low = low](int64_t side) {
    return static_cast<int64_t>(static_cast<double>(how.shortest * side) /
                                static_cast<double>(low));
  };
  const auto weights = [&](int64_t side) {
    const int64_t to = resized(side);
    return WeightsOf(side, to, (to - how.size) / 2, how.size, how.cubic);
  };
  const std::vector<Weights> across = weights(picture.width), down = weights(picture.height);
  const int64_t top = down.front().first;
  const int64_t bottom = down.back().first + std::ssize(down.back().of);
  std::vector<uint8_t> rows(static_cast<size_t>((bottom - top) * how.size * kChannels));
  uint8_t* written = rows.data();
  for (int64_t y = top; y < bottom; ++y) {
    for (const Weights& one : across) {
      const uint8_t* first = picture.pixels.data() + (y * picture.width + one.first) * kChannels;
      for (int64_t c = 0; c < kChannels; ++c) *written++ = Mixed(one, first + c, kChannels);
    }
  }
  PreparedPicture prepared;
  const int64_t width = how.size * kChannels;
  for (int64_t c = 0; c < kChannels; ++c) {
    for (const Weights& one : down) {
      const uint8_t* first = rows.data() + (one.first - top) * width + c;
      for (int64_t x = 0; x < how.size; ++x) {
        prepared.pixels.push_back(Mixed(one, first + x * kChannels, width));
      }
    }
  }
  Md5 digest;
  digest.Add({reinterpret_cast<const char*>(prepared.pixels.data()), prepared.pixels.size()});
  const std::string digits = digest.Finish();
  for (size_t i = 0; i < prepared.digest.size(); ++i) {
    prepared.digest[i] = static_cast<uint32_t>(std::stoul(digits.substr(8 * i, 8), nullptr, 16));
  }
  return prepared;
}

std::vector<float> NumbersOf(const PreparedPicture& picture, const Preparation& how) {
  std::vector<float> numbers;
  numbers.reserve(picture.pixels.size());
  const size_t each = picture.pixels.size() / kChannels;
  for (size_t i = 0; i < picture.pixels.size(); ++i) {
    const size_t c = i / each;
    numbers.push_back((static_cast<float>(picture.pixels[i]) * how.scale - how.mean[c]) /
                      how.deviation[c]);
  }
  return numbers;
}

std::vector<PromptPicture> PlacePictures(
    const std::vector<std::shared_ptr<const PreparedPicture>>& pictures, const Preparation& how,
    std::vector<int32_t>* tokens) {
  const auto places = static_cast<size_t>(std::ranges::count(*tokens, how.token));
  if (places != pictures.size()) {
    throw InputError("the prompt has " + std::to_string(places) + " places for pictures, and " +
                     std::to_string(pictures.size()) + " pictures were given");
  }
  std::vector<PromptPicture> placed;
  std::vector<int32_t> whole;
  for (const int32_t token : *tokens) {
    if (token == how.token) {
      placed.push_back({std::ssize(whole), how.tokens, pictures[placed.size()]});
      whole.insert(whole.end(), static_cast<size_t>(how.tokens), token);
    } else {
      whole.push_back(token);
    }
  }
  *tokens = std::move(whole);
  return placed;
}

}  // namespace rvv_runner
