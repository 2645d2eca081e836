#include <algorithm>

#include "kernels/experts/fused_moe/buffers.h"
#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// Rows of w1 over ffn: gated or not.
double first_layers(const Dims& dims) { return dim(dims, "activation") == 0 ? 2 : 1; }

// The scores, both layers of each choice that is taken, and the sums of tokens; w of experts that
// are chosen and of shared ones. On several ranks as many rows come to each as its tokens make.
Work work(DType dtype, const Dims& dims) {
  const double tokens = size(dims, "tokens");
  const double hidden = size(dims, "hidden");
  const double ffn = size(dims, "ffn");
  const double experts = size(dims, "experts_total");
  const double own_experts = size(dims, "experts");
  const double topk = size(dims, "topk");
  require(topk <= experts, "topk of at most experts_total");
  require(own_experts >= 1, "an expert of each rank");
  require(own_experts <= experts, "experts of at most experts_total");
  const double shared = size(dims, "shared");
  const double chosen = tokens * topk;
  const double rows =
      mean_rows(fused_moe_shape(dtype, dims), dim(dims, "tokens")) + tokens * shared;
  const double layers = first_layers(dims) + 1;
  const double active = std::min(own_experts, chosen) + shared;
  return {.flops = Flops(2 * tokens * experts * hidden + 2 * rows * hidden * ffn * layers),
          .bytes_read = Bytes((tokens + experts) * hidden * bytes_per_element(DType::kBf16) +
                              active * layers * hidden * ffn * weight_bytes(dtype)),
          .bytes_written = Bytes(tokens * hidden * result_bytes(dtype) +
                                 tokens * experts * bytes_per_element(DType::kFp32))};
}

// Room for what routing may do: rows of x that may come to the rank, what lies between their
// layers, and on several ranks results of own tokens. Without tables, counters and parts of logits,
// a fiftieth of 1,000 tokens and less of more, which depend on the GPU.
Bytes workspace(DType dtype, const Dims& dims) {
  const FusedMoeMemory memory =
      memory_of(fused_moe_buffers(fused_moe_shape(dtype, dims), /*num_sms=*/1));
  return memory.rows + memory.between + memory.results;
}

}  // namespace

KernelSpec fused_moe_spec() {
  return {
      .name = "fused_moe",
      .summary =
          "a layer of routed experts in one launch, on several GPUs one on each: scores, top-k, "
          "rows by expert, both layers and weighed sums y[tokens, hidden]",
      .dims = {{.name = "tokens", .meaning = "rows of x"},
               {.name = "hidden", .meaning = "columns of x and y"},
               {.name = "ffn", .meaning = "columns between an expert's layers"},
               {.name = "experts_total",
                .meaning = "routed experts of the layer, on all ranks",
                .must_be_whole = true},
               {.name = "topk", .meaning = "experts of each token"},
               {.name = "activation",
                .meaning = "of the first layer: 0 SwiGLU, 1 GELU, 2 ReLU",
                .may_be_zero = true,
                .executed = {0, 1, 2}},
               {.name = "experts", .meaning = "of them, those of a rank"},
               {.name = "shared",
                .meaning = "experts as wide that take every token, of each rank",
                .may_be_zero = true}},
      .optional_dims = {{.name = "capacity_percent",
                         .meaning = "100 times the capacity factor of routed experts; without it "
                                    "no token is dropped"}},
      .slots = {{.name = "x", .axes = "tokens, hidden", .type = SlotType::kBf16},
                {.name = "router",
                 .axes = "experts_total, hidden",
                 .type = SlotType::kBf16,
                 .use = Use::kWeight},
                {.name = "w1",
                 .axes = "experts, 2*ffn, hidden | experts, ffn, hidden",
                 .use = Use::kWeight},
                {.name = "w2", .axes = "experts, hidden, ffn", .use = Use::kWeight},
                {.name = "correction_bias",
                 .axes = "experts_total",
                 .type = SlotType::kFp32,
                 .use = Use::kWeight,
                 .is_optional = true},
                {.name = "shared_w1",
                 .axes = "2*shared*ffn, hidden | shared*ffn, hidden",
                 .use = Use::kWeight,
                 .is_optional = true},
                {.name = "shared_w2",
                 .axes = "hidden, shared*ffn",
                 .use = Use::kWeight,
                 .is_optional = true},
                {.name = "scores",
                 .axes = "tokens, experts_total",
                 .type = SlotType::kFp32,
                 .is_result = true},
                {.name = "y", .axes = "tokens, hidden", .type = SlotType::kBf16, .is_result = true},
                {.name = "faults", .axes = "1", .type = SlotType::kInt32, .is_result = true}},
      .work = work,
      // As grouped_gemm; the floor is the launch and what passes between its parts.
      .prior = {.arithmetic = Arithmetic::kGemm,
                .flops = 0.65,
                .hbm = 0.8,
                .floor = us(20),
                .spread = 0.2},
      .routed = RoutedRole::kLayer,
      .workspace = workspace,
      .executed = {DType::kBf16, DType::kFp8}};
}

}  // namespace orrery
