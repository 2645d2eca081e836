#include "kernels/attention_prefill/launch_sm90.cuh"
#include "kernels/mla_prefill/mla_prefill.h"

namespace orrery {

void mla_prefill(const cuda::Stream& stream, const PrefillPlan& plan, const MlaPrefill& call) {
  // One query tile: with two of each of 48 KiB of keys and 32 KiB of values a second does not fit.
  using Mla = prefill::Config<kMlaQkHeadDim, kMlaVHeadDim, 2, 1, 2, false>;
  static_assert(Mla::kRows == kMlaPrefillTileRows);
  if (plan.tokens() == 0) return;
  prefill::require(call.heads > 0 && call.scale > 0,
                   "mla_prefill: heads and scale must be above 0");
  prefill::require(plan.tile_rows() == kMlaPrefillTileRows,
                   "mla_prefill: the plan has tiles of " + std::to_string(plan.tile_rows()) +
                       " rows, expected " + std::to_string(kMlaPrefillTileRows));
  prefill::require_aligned("mla_prefill", {call.q, call.out, call.keys, call.values});
  const prefill::Maps maps{
      .q = prefill::rows_map(call.q, plan.tokens(), call.heads, Mla::kQkDim, 64),
      .k = prefill::rows_map(call.keys, plan.keys(), call.heads, Mla::kQkDim, Mla::kKeys),
      .v = prefill::rows_map(call.values, plan.keys(), call.heads, Mla::kVDim, Mla::kKeys)};
  prefill::launch<Mla>(
      stream, maps,
      prefill::arguments(plan, call.out, call.lse, call.heads, call.heads, call.scale));
}

}  // namespace orrery
