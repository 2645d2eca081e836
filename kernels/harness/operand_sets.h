#pragma once

// The operands of a case in as many copies as it has sets.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/harness/gpu_kernel.h"
#include "kernels/harness/operands.h"

namespace orrery {

// The size of a dim that selects a variant of a kernel and that the spec does not know; `otherwise`
// where the op does not name it.
inline std::int64_t variant(const Dims& dims, std::string_view name, std::int64_t otherwise = 0) {
  const auto found = std::ranges::find(dims, name, &Dim::name);
  return found == dims.end() ? otherwise : found->size;
}

// The `width` elements from `offset` on of each `stride` elements of `rows`: of operands in longer
// rows, what the reference takes.
inline std::vector<double> columns_of(const std::vector<double>& rows, std::size_t stride,
                                      std::size_t offset, std::size_t width) {
  if (width == stride) return rows;
  std::vector<double> columns;
  columns.reserve(rows.size() / stride * width);
  for (std::size_t at = offset; at + width <= rows.size(); at += stride) {
    const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(at);
    columns.insert(columns.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
  }
  return columns;
}

// Cuts `values` of an output off at `size`; how many of those behind it have been written, being no
// longer NaN.
inline std::size_t cut_written(std::vector<double>& values, std::size_t size) {
  const auto begin = values.begin() + static_cast<std::ptrdiff_t>(size);
  const auto written =
      std::count_if(begin, values.end(), [](double value) { return !std::isnan(value); });
  values.resize(size);
  return static_cast<std::size_t>(written);
}

// A random operand that the kernel reads or updates; each set has other values.
template <typename T>
class InputSets {
 public:
  InputSets(std::size_t count, std::uint64_t seed, int sets, float scale = 1.0f)
      : count_(count), seed_(seed), scale_(scale) {
    for (int set = 0; set < sets; ++set) {
      sets_.push_back(normal_buffer<T>(std::max(count, std::size_t{1}),
                                       seed + static_cast<std::uint64_t>(set) * kSeeds, scale));
    }
  }
  [[nodiscard]] T* operator[](int set) const { return sets_[static_cast<std::size_t>(set)].get(); }
  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] int num_sets() const { return static_cast<int>(sets_.size()); }
  // Set 0 as made.
  void reset(const cuda::Stream& stream) const {
    fill_normal(stream, (*this)[0], count_, seed_, scale_);
  }
  [[nodiscard]] std::vector<double> made() const { return host_normal<T>(count_, seed_, scale_); }
  // `count` elements of set 0 from `first` on, as far as there are so many.
  [[nodiscard]] Tile tile(const std::string& what, std::size_t first, std::size_t count) const {
    return {.what = what,
            .data = (*this)[0] + first,
            .bytes = std::min(count, count_ - first) * sizeof(T)};
  }

 private:
  static constexpr std::uint64_t kSeeds = 1000;  // from one set's seed to the next

  std::size_t count_;
  std::uint64_t seed_;
  float scale_;
  std::vector<cuda::DeviceBuffer<T>> sets_;
};

// An output: NaN (or -1) until it is written.
template <typename T>
class OutputSets {
 public:
  OutputSets(std::size_t count, int sets) : count_(count) {
    for (int set = 0; set < sets; ++set) sets_.emplace_back(std::max(count, std::size_t{1}));
  }
  [[nodiscard]] T* operator[](int set) const { return sets_[static_cast<std::size_t>(set)].get(); }
  [[nodiscard]] std::size_t count() const { return count_; }
  void reset(const cuda::Stream& stream) const { poison(stream, sets_[0]); }
  [[nodiscard]] std::vector<double> host(const cuda::Stream& stream) const {
    return host_double(stream, (*this)[0], count_);
  }
  [[nodiscard]] Tile tile(const std::string& what, std::size_t first, std::size_t count) const {
    return {.what = what,
            .data = (*this)[0] + first,
            .bytes = std::min(count, count_ - first) * sizeof(T),
            .is_output = true};
  }

 private:
  std::size_t count_;
  std::vector<cuda::DeviceBuffer<T>> sets_;
};

}  // namespace orrery
