#include "kernels/attention/attention_prefill/launch_sm90.cuh"
#include "kernels/attention/mla_prefill/mla_prefill.h"

namespace orrery {
namespace {

// One query tile: with two of each of 48 KiB of keys and 32 KiB of values a second does not fit.
using Mla = prefill::Config<kMlaQkHeadDim, kMlaVHeadDim, 2, 1, 2, false, kMlaRotatedDim>;
static_assert(Mla::kRows == kMlaPrefillTileRows);

CUtensorMap key_map(const PrefillPlan& plan, const MlaRows& rows, std::int64_t heads, int dim) {
  prefill::require(rows.stride % 8 == 0 && rows.head_stride % 8 == 0,
                   "mla_prefill: strides must be multiples of 8");
  return prefill::rows_map(rows.data, plan.keys(), heads, dim, Mla::kKeys, rows.stride,
                           rows.head_stride);
}

}  // namespace

void mla_prefill(const cuda::Stream& stream, const PrefillPlan& plan, const MlaPrefill& call) {
  if (plan.tokens() == 0) return;
  prefill::require(call.heads > 0 && call.scale > 0,
                   "mla_prefill: heads and scale must be above 0");
  prefill::require(call.rotated_heads == 1 || call.rotated_heads == call.heads,
                   "mla_prefill: rotated_heads must be 1 or heads");
  prefill::require(plan.tile_rows() == kMlaPrefillTileRows,
                   "mla_prefill: the plan has tiles of " + std::to_string(plan.tile_rows()) +
                       " rows, expected " + std::to_string(kMlaPrefillTileRows));
  prefill::require_aligned("mla_prefill",
                           {call.q, call.out, call.keys.data, call.rotated.data, call.values.data});
  const prefill::Maps maps{
      .q = prefill::rows_map(call.q, plan.tokens(), call.heads, Mla::kQkDim, 64),
      .k = key_map(plan, call.keys, call.heads, kMlaPlainDim),
      .v = key_map(plan, call.values, call.heads, Mla::kVDim),
      .rotated = key_map(plan, call.rotated, call.rotated_heads, kMlaRotatedDim)};
  prefill::Arguments arguments =
      prefill::arguments(plan, call.out, call.lse, call.heads, call.heads, call.scale);
  arguments.heads_per_rotated = call.heads / call.rotated_heads;
  prefill::launch<Mla>(stream, maps, arguments);
}

}  // namespace orrery
