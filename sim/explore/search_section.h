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

// A value of ep: all ranks of attention.
inline constexpr std::string_view kFullEp = "full";
// More combinations than this are refused: they are enumerated one by one.
inline constexpr std::int64_t kMostCombinations = 1'000'000;

// Of `root`, a question; `base` is its scenario. Throws ScenarioError for a section that is none:
// an unknown key, an empty list, a range that goes down, more GPUs than there are.
SearchSection read_search(const YamlNode& root, const Scenario& base);

// Values of a mesh key's `auto` for a model on a machine: tp and pp powers of two (to the NVLink
// domain, to 4), dp and ep of mixtures of experts powers of two and dp * tp; else 1.
std::vector<std::string> auto_values(const std::string& key, const Scenario& base, int most_gpus);

// A scalar that stands at `where`.
YamlNode scalar_node(const std::string& text, const Location& where);

}  // namespace orrery
