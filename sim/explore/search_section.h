#pragma once

// What the `search` section of a question says, before any plan is made of it (space.h).

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/scenario/reader.h"
#include "sim/scenario/scenario.h"

namespace orrery {

// A key of the scenario and what it may be.
struct Dimension {
  std::string path;  // "placement.tp"
  std::vector<YamlNode> values;
  bool is_auto = false;
};

// Plans of one kind: prefill and decode on the same GPUs, or apart.
struct Family {
  std::vector<Dimension> dimensions;   // without replicas
  std::vector<std::int64_t> replicas;  // empty: not searched
  std::vector<std::int64_t> prefill_replicas;
  bool is_disaggregated = false;
  YamlNode root;  // the scenario without what the family replaces
};

// GPUs of a plan in all.
struct GpuRange {
  int least = 1;
  int most = 0;
};

struct SearchSection {
  GpuRange gpus;
  std::vector<Family> families;
};

// A value of ep: all ranks that experts may lie over, of FFNs where these are apart.
inline constexpr std::string_view kFullEp = "full";
// More combinations than this are refused: they are enumerated one by one.
inline constexpr std::int64_t kMostCombinations = 1'000'000;

// Of `root`, a question; `base` is its scenario. Throws ScenarioError for a section that is none:
// an unknown key, an empty list, a range that goes down, more GPUs than there are.
SearchSection read_search(const YamlNode& root, const Scenario& base);

// Values of a mesh key's `auto` for a model on a machine: tp, ffn_tp and cp powers of two (to the
// NVLink domain; cp what the context may be split into), pp to 4, dp of mixtures of experts and of
// attention with FFNs apart powers of two, ep 1 or all ranks, ffn_instances none or what columns
// and experts divide over, 1 to 4 micro-batches, both ways of cp_weights, cp_prefill,
// cp_decodes, dp_rows and ffn_schedule.
std::vector<std::string> auto_values(const std::string& key, const Scenario& base, int most_gpus,
                                     bool has_ffns_apart);

// A scalar that stands at `where`.
YamlNode scalar_node(const std::string& text, const Location& where);

}  // namespace orrery
