#include "kernels/experts/fused_moe/buffers.h"

#include <algorithm>

namespace orrery {

namespace {

std::int64_t ceil_div(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }

}  // namespace

LogitParts logit_parts(const FusedMoeShape& shape, std::int64_t tokens, int num_sms) {
  constexpr std::int64_t kColumns = 64;
  constexpr std::int64_t kLeastSteps = 4;  // fewer are not worth a part
  const std::int64_t steps = ceil_div(shape.hidden, kColumns);
  const std::int64_t blocks = std::max<std::int64_t>(ceil_div(tokens, kFusedLogitRows), 1);
  const std::int64_t parts = std::clamp<std::int64_t>(
      std::min(num_sms / blocks, ceil_div(steps, kLeastSteps)), 1, kMostLogitParts);
  const std::int64_t of_part = ceil_div(steps, parts);
  return {.parts = static_cast<int>(ceil_div(steps, of_part)), .steps = static_cast<int>(of_part)};
}

FusedMoeBuffers fused_moe_buffers(const FusedMoeShape& shape, int num_sms) {
  if (shape.tokens == 0) return {};
  const auto count = [](std::int64_t elements) { return static_cast<std::size_t>(elements); };
  const std::int64_t choices = num_choices(shape);
  const std::int64_t of_all = shape.ranks * choices;
  FusedMoeBuffers buffers;
  const std::int64_t slots = num_slots(shape);
  buffers.most_tiles = of_all / kFusedTileRows + std::min(slots, of_all);
  buffers.element = shape.is_fp8 ? 1 : 2;
  buffers.rows = count(most_rows(shape) * shape.hidden);
  const bool are_rows = shape.ranks == 1 && !shape.is_fp8;
  buffers.results = are_rows ? 0 : count(choices * shape.hidden);
  buffers.h = count(most_rows(shape) * shape.ffn);
  if (shape.is_fp8) {
    buffers.h_fp8 = buffers.h;
    buffers.row_scales = count(3 * most_rows(shape));
  }
  buffers.row_token = buffers.token_rows = buffers.token_weights = count(choices);
  buffers.row_tile = count(choices);
  buffers.counts = count(num_sms * (slots + 1));
  buffers.starts = count(2 * shape.ranks * (slots + 1));
  buffers.logits =
      count(std::min(num_sms * kFusedLogitRows, kMostLogitParts * shape.tokens) * shape.experts);
  buffers.row_starts = slots > kFusedSharedSlots ? buffers.counts : 0;
  buffers.counters = count(4 * buffers.most_tiles + num_sms);
  buffers.controls = 1;
  return buffers;
}

FusedMoeArea fused_moe_area(const FusedMoeBuffers& buffers) {
  constexpr std::size_t kAlignment = 1024;  // of what bulk copies read and write, at least
  FusedMoeArea area;
  std::size_t end = buffers.rows * buffers.element;
  const auto place = [&](std::size_t bytes) {
    const std::size_t begin = (end + kAlignment - 1) / kAlignment * kAlignment;
    end = begin + bytes;
    return begin;
  };
  area.row_scales = place(4 * buffers.row_scales);
  area.results = place(2 * buffers.results);
  area.starts = place(8 * buffers.starts);
  area.counters = place(4 * buffers.counters);
  area.bytes = end;
  return area;
}

FusedMoeMemory memory_of(const FusedMoeBuffers& buffers) {
  const auto bytes = [](std::size_t elements, std::size_t each) {
    return Bytes(static_cast<double>(elements * each));
  };
  constexpr std::size_t kBf16 = 2;
  constexpr std::size_t kWord = 4;
  constexpr std::size_t kNumbered = 8;  // a word beside the number of its launch
  return {.rows = bytes(buffers.rows, buffers.element),
          .results = bytes(buffers.results, kBf16),
          .between = bytes(buffers.h, kBf16) + bytes(buffers.h_fp8, 1),
          .tables = bytes(buffers.row_scales, kWord) +
                    bytes(buffers.row_token + buffers.token_rows + buffers.token_weights, kWord) +
                    bytes(buffers.row_tile, kNumbered),
          .counters = bytes(buffers.counts + buffers.starts, kNumbered) +
                      bytes(buffers.counters + buffers.logits + buffers.row_starts, kWord) +
                      bytes(buffers.controls, sizeof(fused_moe::Control))};
}

FusedMoeShape fused_moe_shape(DType dtype, const Dims& dims) {
  const auto percent = std::ranges::find(dims, "capacity_percent", &Dim::name);
  return {.tokens = dim(dims, "tokens"),
          .hidden = dim(dims, "hidden"),
          .ffn = dim(dims, "ffn"),
          .experts = dim(dims, "experts_total"),
          .topk = dim(dims, "topk"),
          .activation = static_cast<ExpertActivation>(dim(dims, "activation")),
          .is_fp8 = dtype == DType::kFp8,
          .ranks = dim(dims, "experts_total") / dim(dims, "experts"),
          .shared = dim(dims, "shared"),
          .capacity_factor = percent == dims.end() ? 0 : static_cast<double>(percent->size) / 100};
}

}  // namespace orrery
