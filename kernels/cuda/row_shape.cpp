#include "kernels/cuda/row_shape.h"

#include <algorithm>
#include <array>

namespace orrery {
namespace {

constexpr std::int64_t kVectorSize = 8;
constexpr std::int64_t kWarp = 32;
constexpr std::int64_t kBlock = 256;
constexpr std::int64_t kFewRows = 264;                 // two for each multiprocessor of an H200
constexpr std::int64_t kFewVectors = 4L * 132 * 1024;  // four for each of 1,024 threads on each

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

RowShape row_shape(std::int64_t rows, std::int64_t columns) {
  if (columns % kVectorSize != 0) return {.threads = kBlock};
  const std::int64_t vectors = columns / kVectorSize;
  constexpr std::array kFew{1, 2, 4, 8};
  constexpr std::array kMany{4, 4, 4, 8};
  for (const int per_thread : rows <= kFewRows ? kFew : kMany) {
    const std::int64_t threads = ceil_div(ceil_div(vectors, per_thread), kWarp) * kWarp;
    if (threads > kMostRowThreads) continue;
    const bool shares_block = threads == kWarp && rows > kFewRows;
    constexpr int kRowsPerBlock = 4;
    return {.vectors_per_thread = per_thread,
            .threads = static_cast<int>(threads),
            .rows_per_block = shares_block ? kRowsPerBlock : 1};
  }
  return {.threads = kBlock};
}

MapShape map_shape(std::int64_t rows, std::int64_t vectors, int most_vectors) {
  const std::int64_t per_thread = rows * vectors < kFewVectors ? 1 : most_vectors;
  const std::int64_t chunks = ceil_div(vectors, kBlock * per_thread);
  const std::int64_t threads = ceil_div(vectors, chunks * per_thread);
  const std::int64_t rows_per_block = std::clamp(kBlock / threads, std::int64_t{1}, rows);
  return {.vectors_per_thread = static_cast<int>(per_thread),
          .threads_x = static_cast<int>(threads),
          .rows_per_block = static_cast<int>(rows_per_block),
          .chunks = chunks};
}

}  // namespace orrery
