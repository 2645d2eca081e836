#include <algorithm>

#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// A copy. No more rows are read than the table has. Ids are int32.
Work work(DType dtype, const Dims& dims) {
  const double tokens = size(dims, "tokens");
  const double hidden = size(dims, "hidden");
  const double vocab = size(dims, "vocab");
  const double bytes_per_row = hidden * bytes_per_element(dtype);
  return {.flops = Flops(0),
          .bytes_read = Bytes(std::min(tokens, vocab) * bytes_per_row +
                              tokens * bytes_per_element(DType::kInt32)),
          .bytes_written = Bytes(tokens * bytes_per_row)};
}

}  // namespace

KernelSpec embedding_spec() {
  return {.name = "embedding",
          .summary = "rows of the embedding table by token id; dtype is the format of the table",
          .dims = {{.name = "tokens", .meaning = "token ids"},
                   {.name = "hidden", .meaning = "columns of the table"},
                   {.name = "vocab",
                    .meaning = "rows of the table; ids outside of them give zeros",
                    .is_contraction = true}},
          .slots =
              {{.name = "ids", .axes = "tokens", .type = SlotType::kInt32, .use = Use::kInput},
               {.name = "table", .axes = "vocab, hidden", .use = Use::kWeight},
               {.name = "y", .axes = "tokens, hidden", .type = SlotType::kBf16, .is_result = true}},
          .work = work,
          // A gather: 4.0 of 4.8 TB/s on H200 (docs/data.md); small kernels in a CUDA graph take
          // 2 to 2.5 us. The spread is an assumption.
          .prior = {.arithmetic = Arithmetic::kRows,
                    .flops = 0.6,
                    .hbm = 0.83,
                    .floor = us(2),
                    .spread = 0.2},
          .executed = {DType::kBf16}};
}

}  // namespace orrery
