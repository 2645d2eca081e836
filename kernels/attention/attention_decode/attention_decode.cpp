#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <string>

#include "kernels/attention/attention_decode/launch_work.h"
#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// 2 flops per multiply-add in each of q k^T and p v, over the pairs that the causal mask and the
// window leave; softmax is not counted, as usual for MFU. Reads bf16 q and each visible key and
// value once for a group of query heads; writes bf16.
Work work(DType dtype, const Dims& dims) {
  const double batch = size(dims, "batch");
  const double heads = size(dims, "heads");
  const double kv_heads = size(dims, "kv_heads");
  const double head_dim = size(dims, "head_dim");
  const double keys = batch * std::min(size(dims, "context"), size(dims, "window"));
  const double q_bytes = batch * heads * head_dim * bytes_per_element(DType::kBf16);
  return {.flops = Flops(4 * heads * head_dim * keys),
          .bytes_read = Bytes(q_bytes + 2 * keys * kv_heads * head_dim * bytes_per_element(dtype)),
          .bytes_written = Bytes(q_bytes)};
}

constexpr std::int32_t kNumSms = 132;  // of the GPUs that it is made for

std::int32_t clamped(std::int64_t size) {
  return static_cast<std::int32_t>(
      std::min<std::int64_t>(size, std::numeric_limits<std::int32_t>::max()));
}

AttentionDecodeShape shape_of(std::span<const std::int64_t> sizes) {
  return {.seqs = clamped(sizes[0]),
          .heads = clamped(sizes[2]),
          .kv_heads = clamped(sizes[3]),
          .head_dim = clamped(sizes[4]),
          .max_context = clamped(sizes[1]),
          .window = clamped(sizes[5])};
}

// 1: no block ends one row and goes on with another. Of others the time depends on how many do so.
int way(DType dtype, std::span<const std::int64_t> sizes) {
  try {
    const auto bytes = static_cast<std::int32_t>(bytes_per_element(dtype));
    return is_even_split(shape_of(sizes), bytes, kNumSms) ? 1 : 0;
  } catch (const std::invalid_argument&) {
    return 0;  // it does not take the call
  }
}

LaunchWork launch(DType dtype, const Dims& dims, int num_sms) {
  const std::array sizes = {dim(dims, "batch"),    dim(dims, "context"),  dim(dims, "heads"),
                            dim(dims, "kv_heads"), dim(dims, "head_dim"), dim(dims, "window")};
  try {
    return attention_decode_launch(shape_of(sizes),
                                   static_cast<std::int32_t>(bytes_per_element(dtype)),
                                   work(dtype, dims).flops, num_sms);
  } catch (const std::invalid_argument&) {
    return {};  // it does not take the call
  }
}

std::string refusal(const Dims& dims) {
  const std::int64_t heads = dim(dims, "heads");
  const std::int64_t kv_heads = dim(dims, "kv_heads");
  if (heads <= decode::kMaxRatio * kv_heads && heads % kv_heads == 0) return "";
  return std::to_string(heads) + " heads on " + std::to_string(kv_heads) +
         " of keys and values; executed: 1 to " + std::to_string(decode::kMaxRatio) + " on each";
}

}  // namespace

KernelSpec attention_decode_spec() {
  return {
      .name = "attention_decode",
      .summary = "attention of one new token per sequence over its cache; dtype is the KV format",
      .dims = {{.name = "batch", .meaning = "sequences"},
               {.name = "context", .meaning = "mean tokens per sequence, the new one included"},
               {.name = "heads", .meaning = "query heads on this rank"},
               {.name = "kv_heads", .meaning = "key and value heads on this rank"},
               {.name = "head_dim", .meaning = "elements per head", .executed = {64, 128}},
               {.name = "window",
                .meaning = "newest keys the token sees, itself included; 2^30: all"}},
      .slots = {{.name = "q", .axes = "batch.., ..", .type = SlotType::kBf16},
                {.name = "cache", .axes = ".., ..", .use = Use::kCache},
                {.name = "out",
                 .axes = "batch, heads*head_dim",
                 .type = SlotType::kBf16,
                 .is_result = true},
                {.name = "lse",
                 .axes = "batch.., heads",
                 .type = SlotType::kFp32,
                 .is_result = true,
                 .is_optional = true}},
      .work = work,
      .way = way,
      .rounds = one_round,
      .prior = {.arithmetic = Arithmetic::kAttention,
                .flops = 0.6,
                .hbm = 0.8,
                .floor = us(8),
                .spread = 0.03,
                .grid = {.axes = {"batch", "context", "heads"},
                         .tied = "kv_heads",
                         .is_by_way = true},
                .launch = launch,
                .launch_holds_across_ways = true},
      .leaves_sms = true,
      .executed = {DType::kBf16, DType::kFp8},
      .refusal = refusal};
}

}  // namespace orrery
