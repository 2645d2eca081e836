#pragma once

// The tiles of a step's prefill that launches of one stream share.

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/binding/bind_resources.h"

namespace orrery {

// Made once for a step; throws as PrefillPlan does.
inline std::shared_ptr<const PrefillPlan> kept_prefill_plan(BindResources& resources,
                                                            std::int32_t tile_rows,
                                                            std::int32_t window) {
  return resources.keep_for_step<PrefillPlan>(std::pair(tile_rows, window),
                                              [&](std::span<const PrefillChunk> sequences) {
                                                return PrefillPlan(sequences, tile_rows, window);
                                              });
}

}  // namespace orrery
