#pragma once

// What lies between the ranks that hold the experts of a mesh, as moe.experts by_links asks for it:
// latency and rate of each pair, and what a layer does with the tokens of a step.

#include <filesystem>
#include <map>
#include <utility>

#include "sim/scenario/moe_spec.h"
#include "sim/scenario/scenario.h"

namespace orrery {

// Of `mesh` on the machine of `setting`, with weights and rows of `precision`; links and work are
// those of scenario.moe.experts by_links alone. Links are the machine's, by the narrowest of each
// route; between GPUs of one host the measured ones of its own table links/nvlink.csv, where that
// has all pairs of the host's ranks. Steps have max_num_batched_tokens on each data-parallel rank.
// Throws std::invalid_argument for experts on ranks of their own (ffn_instances) and a malformed
// table.
ExpertSite expert_site(const Scenario& scenario, const MachineSetting& setting, const Mesh& mesh,
                       const Precision& precision);

// Of a table of `orrery-gpu time links`: for each ordered pair of GPUs of a host the latency of a
// store (of a pair timed one way alone that of both ways) and the rate of stores by SMs one way.
// Throws std::invalid_argument for a malformed table, or a pair that has one of them alone.
struct PairLink {
  Seconds latency;
  BytesPerSecond rate;
};
std::map<std::pair<int, int>, PairLink> read_pair_links(const std::filesystem::path& file);

}  // namespace orrery
