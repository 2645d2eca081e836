#include "kernels/cuda/row_shape.h"

#include <algorithm>
#include <array>

namespace orrery {
namespace {

constexpr std::int64_t kVectorSize = 8;
constexpr std::int64_t kWarp = 32;
constexpr int kBlock = 256;
constexpr std::int64_t kFewVectors = 4L * 132 * 1024;  // four for each of 1,024 threads on each

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

RowShape row_shape(std::int64_t rows, std::int64_t columns, int preferred) {
  if (columns % kVectorSize != 0) return {.threads = kBlock};
  const bool few = rows <= kFewRows;
  const std::int64_t vectors = columns / kVectorSize;
  constexpr std::array kVectorsPerThread{1, 2, 4};
  for (const int per_thread : kVectorsPerThread) {
    if (!few && per_thread < preferred) continue;
    const std::int64_t threads = ceil_div(ceil_div(vectors, per_thread), kWarp) * kWarp;
    // One vector each pays up to half of the most threads.
    if (threads > (per_thread == 1 ? kMostRowThreads / 2 : kMostRowThreads)) continue;
    constexpr int kRowsPerBlock = 4;
    return {.vectors_per_thread = per_thread,
            .threads = static_cast<int>(threads),
            .rows_per_block = threads == kWarp && !few ? kRowsPerBlock : 1};
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
