// Bilinear resizing of an image of bytes, with the bits of TensorFlow's ResizeBilinear (half_pixel_centers): tf.image.resize without
// antialias. TensorFlow reads four bytes for each value that it writes; here a row is widened and interpolated once.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace edl {

struct ImageSize {
  std::size_t height, width;
};

// Of a row or column of the result: the two of the image that it lies between, and how far it is from the first.
struct Between {
  std::size_t lower, upper;
  float share;
};

inline std::vector<Between> places_between(std::size_t made, std::size_t given) {
  std::vector<Between> places(made);
  const float scale = static_cast<float>(given) / static_cast<float>(made);
  for (std::size_t at = 0; at < made; ++at) {
    const float place = (static_cast<float>(at) + 0.5F) * scale - 0.5F;
    const float below = std::floor(place);
    const auto last = static_cast<std::ptrdiff_t>(given) - 1;
    const auto lower = std::max<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(below), 0);
    const auto upper = std::min(static_cast<std::ptrdiff_t>(std::ceil(place)), last);
    places[at] = {static_cast<std::size_t>(lower), static_cast<std::size_t>(upper), place - below};
  }
  return places;
}

// Three channels are computed as four: the fourth value is overwritten by the next pixel, and behind the last one there is room.
template <std::size_t kChannels>
class RowResizer {
 public:
  RowResizer(std::size_t given, const std::vector<Between>& columns) : columns_(columns), wide_(given * kChannels + kLanes) {}

  void resize(const std::uint8_t* row, float* out) {
    const std::size_t values = wide_.size() - kLanes;
    for (std::size_t at = 0; at < values; ++at) wide_[at] = static_cast<float>(row[at]);
    for (const Between& column : columns_) {
      const float* const left = wide_.data() + column.lower * kChannels;
      const float* const right = wide_.data() + column.upper * kChannels;
      float made[kLanes];
      for (std::size_t lane = 0; lane < kLanes; ++lane) made[lane] = left[lane] + (right[lane] - left[lane]) * column.share;
      std::memcpy(out, made, sizeof made);
      out += kChannels;
    }
  }

  static constexpr std::size_t kLanes = kChannels == 1 ? 1 : 4;

 private:
  const std::vector<Between>& columns_;
  std::vector<float> wide_;
};

// image: [from.height, from.width, kChannels]; out: [to.height, to.width, kChannels].
template <std::size_t kChannels>
void resize_bilinear(const std::uint8_t* image, ImageSize from, float* out, ImageSize to) {
  const std::vector<Between> rows = places_between(to.height, from.height), columns = places_between(to.width, from.width);
  RowResizer<kChannels> resizer(from.width, columns);
  const std::size_t width = to.width * kChannels, none = from.height;
  std::vector<float> upper(width + RowResizer<kChannels>::kLanes), lower(upper.size());
  std::size_t upper_row = none, lower_row = none;
  for (const Between& row : rows) {
    // One row of the result often begins where the one before has ended.
    if (row.lower != upper_row && row.lower == lower_row) {
      upper.swap(lower);
      std::swap(upper_row, lower_row);
    }
    if (row.lower != upper_row) resizer.resize(image + row.lower * from.width * kChannels, upper.data());
    upper_row = row.lower;
    if (row.upper != row.lower && row.upper != lower_row) {
      resizer.resize(image + row.upper * from.width * kChannels, lower.data());
      lower_row = row.upper;
    }
    const float* const second = row.upper == row.lower ? upper.data() : lower.data();
    for (std::size_t at = 0; at < width; ++at) out[at] = upper[at] + (second[at] - upper[at]) * row.share;
    out += width;
  }
}

}  // namespace edl
