#include "kernels/attention/mla_decode/launch_work.h"
#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// All heads share one key (latent and rotated part) whose latent is the value too, so the cache is
// read once. Source: DeepSeek-V2, arXiv 2405.04434, section 2.1 and appendix C.
Work work(DType dtype, const Dims& dims) {
  const double batch = size(dims, "batch");
  const double context = size(dims, "context");
  const double heads = size(dims, "heads");
  const double kv_lora_rank = size(dims, "kv_lora_rank");
  const double rope_dim = size(dims, "rope_dim");
  const double key = kv_lora_rank + rope_dim;
  const double bf16 = bytes_per_element(DType::kBf16);
  return {.flops = Flops(2 * batch * heads * context * (key + kv_lora_rank)),
          .bytes_read =
              Bytes(batch * heads * key * bf16 + batch * context * key * bytes_per_element(dtype)),
          .bytes_written = Bytes(batch * heads * kv_lora_rank * bf16)};
}

// Partial results (workspace.h) on the 132 SMs of an H200: two of each unit, which is one SM or the
// two that share more than 64 heads, each 512 sums and the logarithm of one for every head; and
// where those of a sequence lie.
Bytes workspace(DType /*dtype*/, const Dims& dims) {
  constexpr std::int64_t kSms = 132;
  constexpr std::int64_t kHeadsOfBlock = 64;
  constexpr std::int64_t kSharedSequences = 1024;  // bind.cpp
  const std::int64_t heads = dim(dims, "heads");
  const std::int64_t units = kSms / ((heads + kHeadsOfBlock - 1) / kHeadsOfBlock);
  const std::int64_t results =
      2 * units * heads * (dim(dims, "kv_lora_rank") + 1) * std::int64_t{4};
  return Bytes(static_cast<double>(results + kSharedSequences * 8));
}

LaunchWork launch(DType dtype, const Dims& dims, int num_sms) {
  return mla_decode_launch({.sequences = dim(dims, "batch"),
                            .context = dim(dims, "context"),
                            .heads = dim(dims, "heads")},
                           work(dtype, dims).flops, num_sms);
}

}  // namespace

KernelSpec mla_decode_spec() {
  return {
      .name = "mla_decode",
      .summary =
          "absorbed MLA of one new token per sequence over the latent cache; dtype is the "
          "cache format",
      .dims = {{.name = "batch", .meaning = "sequences"},
               {.name = "context", .meaning = "mean tokens per sequence, the new one included"},
               {.name = "heads", .meaning = "heads on this rank"},
               {.name = "kv_lora_rank",
                .meaning = "elements of the latent of a token",
                .executed = {512}},
               {.name = "rope_dim", .meaning = "elements of its rotated key", .executed = {64}}},
      .slots = {{.name = "latent", .axes = "rows, heads*kv_lora_rank", .type = SlotType::kBf16},
                {.name = "q", .axes = "batch.., ..", .type = SlotType::kBf16},
                {.name = "cache", .axes = ".., ..", .use = Use::kCache},
                {.name = "out",
                 .axes = "rows, heads*kv_lora_rank",
                 .type = SlotType::kBf16,
                 .is_result = true},
                {.name = "lse",
                 .axes = "rows, heads",
                 .type = SlotType::kFp32,
                 .is_result = true,
                 .is_optional = true}},
      .work = work,
      .rounds = one_round,
      .prior = {.arithmetic = Arithmetic::kAttention,
                .flops = 0.6,
                .hbm = 0.8,
                .floor = us(12),
                .spread = 0.06,
                .grid = {.axes = {"batch", "context", "heads"}},
                .launch = launch,
                .launch_holds_across_ways = true,
                .is_issued_slowly = true},
      .workspace = workspace,
      .executed = {DType::kBf16}};
}

}  // namespace orrery
