#pragma once

// Tiers behind KV blocks as the GPU side takes them: which are executed, their text, and what
// became of them. No third-party code.

#include <optional>
#include <string>
#include <string_view>

#include "sim/parallel/parallel.h"
#include "sim/serve/kv_tier_config.h"

namespace orrery {

// Why a service with these tiers is not executed, and what is expected; nothing where it is, which
// is without tiers or with one named host, not shared, behind a replica without data-parallel,
// context-parallel or pipeline ranks.
std::optional<std::string> tiers_refusal(const KvTiersConfig& config, const Mesh& mesh);

// One line per field, numbers in base units:
//
//   block_of_gpu 2097152
//   block 4194304
//   layers 32 32                                    of all stages, of one
//   load always
//   overlap layers
//   prefill 0 0                                     per token, per pair
//   tier host 2.5e+10 5.4e+10 4.6e+10 1e-05 eviction
std::string to_text(const KvTiersConfig& config);
// parse_kv_tiers(to_text(c)) == c for tiers that are not shared and have names without spaces.
// Throws std::invalid_argument with the line number: a field that is unknown, missing or there
// twice, numbers that are not positive, no tier.
KvTiersConfig parse_kv_tiers(std::string_view text);

// tier,hit_tokens,loaded_bytes,written_bytes,evicted_bytes,held_bytes,capacity_bytes, and of all
// tiers exposed_s,exposed_share,recomputed_tokens.
std::string kv_tiers_csv(const KvTierMetrics& metrics);

}  // namespace orrery
