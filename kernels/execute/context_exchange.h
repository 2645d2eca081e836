#pragma once

// What context-parallel ranks give each other of prompts (context_share.h has which rows).

#include "kernels/execute/collective_binding.h"

namespace orrery {

// Keys and values: all_gather of the cache. Brings those of all ranks into the order of the tokens
// (context_memory.h; latents and rotated keys into what is written) and stores new ones that are
// the rank's.
bool gathers_cache(const CollectiveContext& context);
Launch bind_cache_gather(const CollectiveContext& context);

// In a ring: send_recv in which two ranks give each other what they have of keys and values.
bool swaps_cache(const CollectiveContext& context);
Launch bind_cache_swap(const CollectiveContext& context);

// Queries, keys and values of decodes that are dealt out: all_gather of the last rows, and some of
// the columns, that each rank has.
bool gathers_decodes(const CollectiveContext& context);
Launch bind_decode_gather(const CollectiveContext& context);

// Results of attention: all_to_all of [own rows, heads] into [rows, heads / ranks].
bool exchanges_prompts(const CollectiveContext& context);
Launch bind_prompt_exchange(const CollectiveContext& context);

}  // namespace orrery
