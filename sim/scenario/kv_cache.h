#pragma once

// The kv_cache part of a scenario: the tiers behind the KV blocks of its GPUs.
//
//   kv_cache:
//     tiers:                       nearest first; []: what GPUs evict is lost, as without kv_cache
//       - {name: host, capacity: 512 GiB, bandwidth: 50 GB/s, latency: 10 us, write: eviction}
//       - {name: store, capacity: 20 TiB, bandwidth: 40 GB/s, latency: 1 ms, shared: true}
//     load: always                 or when_faster than computing again
//     overlap: layers              of loads with a step's compute; or none

#include <string>

#include "sim/model/model.h"
#include "sim/parallel/parallel.h"
#include "sim/scenario/reader.h"
#include "sim/serve/capacity.h"
#include "sim/serve/kv_tier_config.h"
#include "sim/serve/serve.h"
#include "sim/serve/simulated_steps.h"

namespace orrery {

// Throws ScenarioError: unknown keys and policies, a name twice.
KvTiersConfig read_kv_cache(const YamlNode& node);
// With its key; empty where there are no tiers.
std::string to_yaml(const KvTiersConfig& tiers);

// `given` with what depends on the model: sizes of blocks, layers, and the time of prompts where
// the policy asks for it, fitted to steps of the whole token budget at the start of a prompt and
// behind eight such chunks.
KvTiersConfig kv_tiers_of(const KvTiersConfig& given, const ModelConfig& model, const Mesh& mesh,
                          const EngineConfig& engine, const MemoryBudget& memory, StepTimes& times);

}  // namespace orrery
