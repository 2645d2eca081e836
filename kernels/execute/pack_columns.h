#pragma once

// Columns of a matrix as the ranks that they go to need them: each rank's one behind the other.

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/handles.h"

namespace orrery {

// [rows, parts x columns] as [parts, rows, columns]; columns in bytes.
struct ColumnParts {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  int parts = 1;
};

inline constexpr std::size_t kMostPacked = 4;

// Enqueues one kernel, which reads and writes each byte once. Throws std::invalid_argument for more
// than kMostPacked matrices.
void pack_columns(const cuda::Stream& stream, std::span<const ColumnParts> matrices);

}  // namespace orrery
