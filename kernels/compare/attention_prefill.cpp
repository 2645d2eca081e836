#include "kernels/attention/attention_prefill/attention_prefill.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/attention/mla_prefill/mla_prefill.h"
#include "kernels/compare/c_api.h"

namespace orrery::compare {
namespace {

AttentionPrefill prefill_call(const void* q, void* out, void* lse, std::int64_t heads,
                              std::int64_t kv_heads, std::int64_t head_dim) {
  return {.q = static_cast<const bf16*>(q),
          .out = static_cast<bf16*>(out),
          .lse = static_cast<float*>(lse),
          .heads = static_cast<std::int32_t>(heads),
          .kv_heads = static_cast<std::int32_t>(kv_heads),
          .head_dim = static_cast<std::int32_t>(head_dim),
          .scale = 1 / std::sqrt(static_cast<float>(head_dim))};
}

}  // namespace

// `plan` becomes a new PrefillPlan of `count` sequences whose lengths lie in host memory, for
// mla_prefill when head_dim is 192; it lives as long as the process.
extern "C" int orrery_prefill_plan(void* stream, const std::int32_t* queries,
                                   const std::int32_t* contexts, std::int64_t count,
                                   std::int64_t head_dim, std::int64_t window, void** plan) {
  return guarded(stream, [&](const cuda::Stream&) {
    std::vector<PrefillChunk> sequences(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i)
      sequences[i] = {.query = queries[i], .context = contexts[i]};
    const std::int32_t tile_rows =
        head_dim == kMlaQkHeadDim
            ? kMlaPrefillTileRows
            : attention_prefill_tile_rows(static_cast<std::int32_t>(head_dim));
    *plan = new PrefillPlan(sequences, tile_rows, static_cast<std::int32_t>(window));
  });
}

extern "C" int orrery_attention_prefill(void* stream, const void* plan, const void* q,
                                        const void* keys, const void* values, void* out, void* lse,
                                        std::int64_t heads, std::int64_t kv_heads,
                                        std::int64_t head_dim) {
  return guarded(stream, [&](const cuda::Stream& on) {
    attention_prefill(on, *static_cast<const PrefillPlan*>(plan),
                      prefill_call(q, out, lse, heads, kv_heads, head_dim),
                      static_cast<const bf16*>(keys), static_cast<const bf16*>(values));
  });
}

extern "C" int orrery_attention_prefill_paged(void* stream, const void* plan, const void* q,
                                              const void* keys, const void* values, void* out,
                                              void* lse, const std::int32_t* block_table,
                                              std::int64_t blocks_per_sequence,
                                              std::int64_t block_size, std::int64_t num_blocks,
                                              std::int64_t heads, std::int64_t kv_heads,
                                              std::int64_t head_dim) {
  return guarded(stream, [&](const cuda::Stream& on) {
    attention_prefill(on, *static_cast<const PrefillPlan*>(plan),
                      prefill_call(q, out, lse, heads, kv_heads, head_dim),
                      PagedKv<const bf16>{.keys = static_cast<const bf16*>(keys),
                                          .values = static_cast<const bf16*>(values),
                                          .block_table = block_table,
                                          .blocks_per_sequence = blocks_per_sequence,
                                          .block_size = static_cast<std::int32_t>(block_size),
                                          .num_blocks = static_cast<std::int32_t>(num_blocks)});
  });
}

extern "C" int orrery_mla_prefill(void* stream, const void* plan, const void* q, const void* keys,
                                  const void* values, void* out, void* lse, std::int64_t heads) {
  return guarded(stream, [&](const cuda::Stream& on) {
    mla_prefill(on, *static_cast<const PrefillPlan*>(plan),
                {.q = static_cast<const bf16*>(q),
                 .keys = {.data = static_cast<const bf16*>(keys),
                          .stride = heads * kMlaQkHeadDim,
                          .head_stride = kMlaQkHeadDim},
                 .rotated = {.data = static_cast<const bf16*>(keys) + kMlaPlainDim,
                             .stride = heads * kMlaQkHeadDim,
                             .head_stride = kMlaQkHeadDim},
                 .values = {.data = static_cast<const bf16*>(values)},
                 .out = static_cast<bf16*>(out),
                 .lse = static_cast<float*>(lse),
                 .heads = static_cast<std::int32_t>(heads),
                 .rotated_heads = static_cast<std::int32_t>(heads),
                 .scale = 1 / std::sqrt(static_cast<float>(kMlaQkHeadDim))});
  });
}

}  // namespace orrery::compare
