#include <algorithm>

#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

constexpr double kTopk = 2048;  // index_topk of DeepSeek-V3.2-Exp

// A product per head and key, relu and a weighted sum over heads (DeepSeek-V3.2-Exp, equation 1).
// Each token reads its own keys, one for all heads, as in decode; in prefill tokens of one sequence
// share them, so there this is an upper bound. Writes the int32 ids of at most 2048 keys
// (index_topk of that model).
Work work(DType dtype, const Dims& dims) {
  const double tokens = size(dims, "tokens");
  const double context = size(dims, "context");
  const double index_heads = size(dims, "index_heads");
  const double index_head_dim = size(dims, "index_head_dim");
  const double q_elements = tokens * index_heads * index_head_dim;
  const double key_elements = tokens * context * index_head_dim;
  return {
      .flops = Flops(2 * tokens * context * index_heads * (index_head_dim + 1)),
      .bytes_read = Bytes((q_elements + key_elements) * bytes_per_element(dtype)),
      .bytes_written = Bytes(tokens * std::min(context, kTopk) * bytes_per_element(DType::kInt32))};
}

}  // namespace

KernelSpec sparse_index_spec() {
  return {
      .name = "sparse_index",
      .summary =
          "index logits of sparse attention and the top-k of them; dtype is the format of "
          "queries and keys",
      .dims = {{.name = "tokens", .meaning = "new tokens"},
               {.name = "context", .meaning = "mean tokens each of them sees, itself included"},
               {.name = "index_heads", .meaning = "heads of the indexer"},
               {.name = "index_head_dim", .meaning = "elements per head"}},
      .slots =
          {{.name = "q", .axes = "tokens, index_heads*index_head_dim", .type = SlotType::kBf16},
           {.name = "keys", .axes = "tokens, index_head_dim", .type = SlotType::kBf16},
           {.name = "gates", .axes = "tokens, index_heads", .type = SlotType::kBf16},
           {.name = "picked", .axes = "tokens, ..", .type = SlotType::kInt32, .is_result = true}},
      .work = work,
      // Not measured: the efficiencies of large GEMMs, floor and spread are assumptions.
      .prior = {.arithmetic = Arithmetic::kRows,
                .flops = 0.6,
                .hbm = 0.8,
                .floor = us(6),
                .spread = 0.3}};
}

}  // namespace orrery
