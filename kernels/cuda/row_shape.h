#pragma once

// How rows are laid out over threads in the element-wise kernels.

#include <cstdint>

namespace orrery {

// Kernels that reduce each row and hold it in registers: a row is `threads` threads with
// `vectors_per_thread` vectors of 8 elements each.
struct RowShape {
  int vectors_per_thread = 0;  // 1, 2 or 4; 0: too long for registers, or not whole vectors
  int threads = 0;             // per row, a multiple of 32; above 32 a block holds one row
  int rows_per_block = 1;
};

inline constexpr int kMostRowThreads = 1024;
inline constexpr std::int64_t kFewRows = 264;  // two for each SM of an H200

// Whether 16-bit rows of `columns` elements may lie `stride` elements apart and be read by 16-byte
// vectors and copies: 0 (contiguous), or a multiple of 8 that is at least `columns`.
constexpr bool is_row_stride(std::int64_t stride, std::int64_t columns) {
  constexpr std::int64_t kElements = 8;
  return stride == 0 || (stride >= columns && stride % kElements == 0);
}

// Many rows: `preferred` vectors per thread, so that several blocks share an SM, more where the row
// is too long for that. Few rows (each has an SM to itself): threads before vectors. columns >= 1.
RowShape row_shape(std::int64_t rows, std::int64_t columns, int preferred);

// Kernels without a reduction: `threads_x` threads with `vectors_per_thread` vectors each cover one
// of `chunks` stretches of a row; a block holds `rows_per_block` such stretches.
struct MapShape {
  int vectors_per_thread = 1;
  int threads_x = 0;
  int rows_per_block = 1;
  std::int64_t chunks = 1;  // per row
  [[nodiscard]] std::int64_t blocks(std::int64_t rows) const {
    return chunks * ((rows + rows_per_block - 1) / rows_per_block);
  }
};

// For rows of `vectors` vectors; `most_vectors` is what a thread takes where there is enough to do.
MapShape map_shape(std::int64_t rows, std::int64_t vectors, int most_vectors);

}  // namespace orrery
