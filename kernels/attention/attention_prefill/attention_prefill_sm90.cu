#include <algorithm>
#include <string>
#include <vector>

#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/attention/attention_prefill/launch_sm90.cuh"
#include "kernels/cuda/device_copy.h"
#include "kernels/cuda/row_shape.h"

namespace orrery {
namespace {

using prefill::require;

template <bool kPaged, bool kBounded = false>
using Head64 = prefill::Config<64, 64, 3, 2, 2, kPaged, 0, kBounded>;
template <bool kPaged, bool kBounded = false>
using Head128 = prefill::Config<128, 128, 2, 2, 2, kPaged, 0, kBounded>;

void check(const PrefillPlan& plan, const AttentionPrefill& call, const bf16* keys,
           const bf16* values) {
  require(call.heads > 0 && call.kv_heads > 0 && call.heads % call.kv_heads == 0,
          "attention_prefill: " + std::to_string(call.heads) + " heads over " +
              std::to_string(call.kv_heads) + " kv_heads, expected a positive multiple");
  require(call.scale > 0, "attention_prefill: scale must be above 0");
  require(plan.tile_rows() == attention_prefill_tile_rows(call.head_dim),
          "attention_prefill: the plan has tiles of " + std::to_string(plan.tile_rows()) +
              " rows, head_dim " + std::to_string(call.head_dim) + " takes " +
              std::to_string(attention_prefill_tile_rows(call.head_dim)));
  require(is_row_stride(call.q_stride, std::int64_t{call.heads} * call.head_dim),
          "attention_prefill: q_stride is " + std::to_string(call.q_stride) +
              ", expected 0 or a multiple of 8 that is at least heads * head_dim");
  prefill::require_aligned("attention_prefill", {call.q, call.out, keys, values});
}

template <bool kPaged, bool kBounded = false>
void launch(const cuda::Stream& stream, const AttentionPrefill& call, const prefill::Maps& maps,
            const prefill::Arguments& a) {
  if (call.head_dim == 64) {
    prefill::launch<Head64<kPaged, kBounded>>(stream, maps, a);
  } else {
    prefill::launch<Head128<kPaged, kBounded>>(stream, maps, a);
  }
}

}  // namespace

PrefillPlan::PrefillPlan(std::span<const PrefillChunk> sequences, std::int32_t tile_rows,
                         std::int32_t window)
    : tile_rows_(tile_rows), window_(window), memory_(0) {
  for (const PrefillChunk& sequence : sequences) {
    tokens_ += sequence.query;
    keys_ += sequence.query + sequence.context;
  }
  take(prefill_tiles(sequences, tile_rows, window));
}

PrefillPlan::PrefillPlan(std::span<const PrefillPiece> pieces, std::int64_t tokens,
                         std::int64_t keys, std::int32_t tile_rows, std::int32_t window)
    : tile_rows_(tile_rows),
      window_(window),
      tokens_(static_cast<std::int32_t>(tokens)),
      keys_(static_cast<std::int32_t>(keys)),
      is_bounded_(std::ranges::any_of(
          pieces, [](const PrefillPiece& piece) { return piece.keys.has_value(); })),
      memory_(0) {
  take(prefill_tiles(pieces, tile_rows, window));
}

void PrefillPlan::take(std::span<const PrefillTile> tiles) {
  num_tiles_ = static_cast<std::int32_t>(tiles.size());
  const auto bytes = std::as_bytes(std::span(tiles));
  std::vector<std::byte> made(kTilesAt + bytes.size());  // counters are zero
  std::ranges::copy(bytes, made.begin() + kTilesAt);
  memory_ = device_copy(std::span<const std::byte>(made));
}

std::int32_t attention_prefill_tile_rows(std::int32_t head_dim) {
  require(head_dim == 64 || head_dim == 128,
          "attention_prefill: head_dim is " + std::to_string(head_dim) + ", expected 64 or 128");
  return head_dim == 64 ? Head64<false>::kRows : Head128<false>::kRows;
}

void attention_prefill(const cuda::Stream& stream, const PrefillPlan& plan,
                       const AttentionPrefill& call, const bf16* keys, const bf16* values) {
  if (plan.num_tiles() == 0) return;
  check(plan, call, keys, values);
  constexpr int kKeys = Head128<false>::kKeys;
  const prefill::Maps maps{
      .q = prefill::rows_map(call.q, plan.tokens(), call.heads, call.head_dim, 64, call.q_stride),
      .k = prefill::rows_map(keys, plan.keys(), call.kv_heads, call.head_dim, kKeys),
      .v = prefill::rows_map(values, plan.keys(), call.kv_heads, call.head_dim, kKeys)};
  const prefill::Arguments a =
      prefill::arguments(plan, call.out, call.lse, call.heads, call.kv_heads, call.scale);
  if (plan.is_bounded()) {
    launch<false, true>(stream, call, maps, a);
  } else {
    launch<false>(stream, call, maps, a);
  }
}

void attention_prefill(const cuda::Stream& stream, const PrefillPlan& plan,
                       const AttentionPrefill& call, const PagedKv<const bf16>& cache) {
  if (plan.num_tiles() == 0) return;
  check(plan, call, cache.keys, cache.values);
  require(!plan.is_bounded(), "attention_prefill: pieces of bounded keys in pages");
  const int block_size = cache.block_size;
  require(block_size == 16 || block_size == 32 || block_size == 64 || block_size == 128,
          "attention_prefill: block_size is " + std::to_string(block_size) +
              ", expected 16, 32, 64 or 128");
  const auto pages = [&](const bf16* data) {
    return prefill::pages_map(data, cache.num_blocks, block_size, call.kv_heads, call.head_dim);
  };
  const prefill::Maps maps{
      .q = prefill::rows_map(call.q, plan.tokens(), call.heads, call.head_dim, 64, call.q_stride),
      .k = pages(cache.keys),
      .v = pages(cache.values)};
  prefill::Arguments a =
      prefill::arguments(plan, call.out, call.lse, call.heads, call.kv_heads, call.scale);
  a.block_table = cache.block_table;
  a.blocks_per_sequence = cache.blocks_per_sequence;
  a.block_size = block_size;
  launch<true>(stream, call, maps, a);
}

}  // namespace orrery
