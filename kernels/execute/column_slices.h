#pragma once

// Collectives of slices of columns: what a rank sends lies between columns that it does not.

#include "kernels/execute/collective_binding.h"

namespace orrery {

// Whether the op sends slices (rank_program.h).
bool sends_slice(const CollectiveContext& context);

// The op with the rank's slice, packed into scratch memory, in place of what it reads first. Throws
// std::invalid_argument where the slice is not one stretch of what is read.
Launch bind_slice(const CollectiveContext& context);

// [rows, parts x columns] as [parts, rows, columns], in rows of bytes.
struct ColumnParts {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  int parts = 1;
};
void pack_columns(const cuda::Stream& stream, const ColumnParts& columns);

}  // namespace orrery
