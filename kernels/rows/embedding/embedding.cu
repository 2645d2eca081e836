#include "kernels/cuda/map_kernel.cuh"
#include "kernels/rows/embedding/embedding.h"

namespace orrery {
namespace {

// table [vocab, columns] by ids [rows]; zeros where the id is outside. Rows may be asked for again.
struct GatheredRows {
  struct Raw {
    uint4 x;
  };
  const std::int32_t* ids;
  const bf16* table;
  std::int64_t columns;
  std::int64_t vocab;

  __device__ Raw load(std::int64_t row, std::int64_t column) const {
    const std::int64_t id = ids[row];
    if (id < 0 || id >= vocab) return {};
    return {load_constant(table + id * columns + column)};
  }
  __device__ uint4 keep(std::int64_t, std::int64_t, const Raw& raw) const { return raw.x; }
  __device__ float first(std::int64_t row, std::int64_t column) const {
    const std::int64_t id = ids[row];
    return id < 0 || id >= vocab ? 0.0f : __bfloat162float(table[id * columns + column]);
  }
};

}  // namespace

void embedding(const cuda::Stream& stream, const std::int32_t* ids, const bf16* table, bf16* y,
               std::int64_t tokens, std::int64_t hidden, std::int64_t vocab) {
  launch_map(stream, GatheredRows{ids, table, hidden, vocab}, Bf16Rows{y, hidden}, tokens,
             vector_aligned(table, y));
}

}  // namespace orrery
