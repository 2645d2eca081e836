#include "sim/explore/search_section.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "sim/machine/machine.h"

namespace orrery {

namespace {

constexpr std::string_view kAuto = "auto";
// What `auto` in place of a whole mesh is of, and keys that have one besides.
constexpr std::array<std::string_view, 5> kPlaceKeys{"tp", "pp", "dp", "ep", "replicas"};
constexpr std::array<std::string_view, 14> kAutoKeys{"tp",
                                                     "pp",
                                                     "dp",
                                                     "ep",
                                                     "replicas",
                                                     "cp",
                                                     "cp_weights",
                                                     "cp_prefill",
                                                     "cp_decodes",
                                                     "dp_rows",
                                                     "ffn_instances",
                                                     "ffn_tp",
                                                     "num_micro_batches",
                                                     "ffn_schedule"};

void erase(YamlNode& map, std::string_view key) {
  std::erase_if(map.entries, [&](const YamlNode::Entry& entry) { return entry.key == key; });
}

// "1..8", "128..1024*2"; nothing where the text is no range.
std::optional<std::vector<std::int64_t>> parse_range(const YamlNode& node) {
  const std::string& text = node.scalar;
  const std::size_t dots = text.find("..");
  const bool is_range = dots != std::string::npos && dots > 0 &&
                        text.find_first_not_of("0123456789.*") == std::string::npos;
  if (!is_range) return std::nullopt;
  const std::size_t star = text.find('*', dots);
  const auto whole = [&](const std::string& part) -> std::int64_t {
    const bool is_number = !part.empty() && part.size() < 10 &&
                           std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
    if (!is_number) {
      fail_at(node.where, "found '" + text + "'; expected a range such as 1..8 or 128..1024*2");
    }
    return std::stoll(part);
  };
  const std::int64_t first = whole(text.substr(0, dots));
  const std::size_t end = star == std::string::npos ? text.size() : star;
  const std::int64_t last = whole(text.substr(dots + 2, end - dots - 2));
  const std::int64_t factor = star == std::string::npos ? 0 : whole(text.substr(star + 1));
  if (first > last) {
    fail_at(node.where, "found '" + text + "', which begins at " + std::to_string(first) +
                            " and ends at " + std::to_string(last) +
                            "; expected a range that goes up, such as 1..8 or 128..1024*2");
  }
  if (star != std::string::npos && (factor < 2 || first < 1)) {
    fail_at(node.where, "found '" + text +
                            "'; expected a first value and a factor with which it is a range that "
                            "goes up, such as 128..1024*2");
  }
  if (factor == 0 && last - first >= kMostCombinations) {
    fail_at(node.where, "found '" + text + "'; expected at most " +
                            std::to_string(kMostCombinations) + " values");
  }
  std::vector<std::int64_t> values;
  for (std::int64_t value = first; value <= last;
       value = factor == 0 ? value + 1 : value * factor) {
    values.push_back(value);
  }
  return values;
}

bool is_mesh_key(std::string_view path, std::string_view key) {
  for (const std::string_view place :
       {"placement.", "disaggregation.prefill.", "disaggregation.decode."}) {
    if (path.starts_with(place) && path.substr(place.size()) == key) return true;
  }
  return false;
}

// What one side has and the other has not: prefill or decode, attention or FFNs.
bool is_side_setting(std::string_view path) {
  if (path.starts_with("placement.ffn.") || path == "placement.ffn") return true;
  for (const std::string_view place : {"disaggregation.prefill.", "disaggregation.decode."}) {
    if (!path.starts_with(place)) continue;
    const std::string_view key = path.substr(place.size());
    return key == "machine" || key == "provider" || key == "cost";
  }
  return false;
}

std::vector<std::int64_t> powers_of_two(std::int64_t most) {
  std::vector<std::int64_t> values;
  for (std::int64_t value = 1; value <= most; value *= 2) values.push_back(value);
  return values;
}

std::vector<std::int64_t> numbers(std::int64_t first, std::int64_t last) {
  std::vector<std::int64_t> values;
  for (std::int64_t value = first; value <= last; ++value) values.push_back(value);
  return values;
}

std::vector<std::string> texts(const std::vector<std::int64_t>& values) {
  std::vector<std::string> made;
  made.reserve(values.size());
  for (const std::int64_t value : values) made.push_back(std::to_string(value));
  return made;
}

bool is_legal(const ModelConfig& model, const Mesh& mesh) {
  try {
    check_mesh(model, mesh);
  } catch (const std::invalid_argument&) {
    return false;
  }
  return true;
}

// Powers of two that the model's context may be split into.
std::vector<std::int64_t> ways_of_context(const ModelConfig& model, std::int64_t most) {
  std::vector<std::int64_t> ways = powers_of_two(most);
  std::erase_if(ways, [&](std::int64_t cp) {
    const Mesh split{.cp = static_cast<int>(cp)};
    const Mesh replicated{.cp = static_cast<int>(cp), .cp_weights = CpWeights::kReplicated};
    return !is_legal(model, split) && !is_legal(model, replicated);
  });
  return ways;
}

// None, and those over which the model's experts and columns of FFNs can lie beside one GPU of
// attention.
std::vector<std::int64_t> numbers_of_ffn_instances(const ModelConfig& model, std::int64_t most) {
  std::vector<std::int64_t> instances = numbers(0, most - 1);
  std::erase_if(instances, [&](std::int64_t count) {
    const int number = static_cast<int>(count);
    const Mesh mesh{.ep = model.num_experts > 0 ? std::max(number, 1) : 1, .ffn_instances = number};
    return count > 0 && !is_legal(model, mesh);
  });
  return instances;
}

// Reads one family's part of `search`.
class FamilyReader {
 public:
  FamilyReader(Family& family, const Scenario& base, const GpuRange& gpus)
      : family_(family), base_(base), gpus_(gpus) {}

  // `node` stands for `path` of the scenario; a mapping is read key by key.
  void read(const YamlNode& node, const std::string& path) {
    const bool is_place =
        path == "placement" || path == "disaggregation.prefill" || path == "disaggregation.decode";
    if (is_place && node.kind == YamlNode::Kind::kScalar && node.scalar == kAuto) {
      for (const std::string_view key : kPlaceKeys) {
        read(scalar_node(std::string(kAuto), node.where), path + "." + std::string(key));
      }
      return;
    }
    if (is_side_setting(path)) {
      fail_at(node.where, "search." + path +
                              ": sides on machines of their own are simulated by 'orrery run' and "
                              "not searched; expected one machine for both");
    }
    if (is_place) {
      has_ffns_apart_ = base_.mesh.ffn_instances > 0 || node.find("ffn_instances") != nullptr;
    }
    if (node.kind == YamlNode::Kind::kMap) {
      for (const YamlNode::Entry& entry : node.entries) {
        read(entry.value, path.empty() ? entry.key : path + "." + entry.key);
      }
      return;
    }
    std::vector<YamlNode> values = values_of(node, path);
    if (is_mesh_key(path, "replicas")) {
      auto& replicas =
          path.starts_with("disaggregation.prefill") ? family_.prefill_replicas : family_.replicas;
      for (const YamlNode& value : values) replicas.push_back(count(value, path));
      return;
    }
    family_.dimensions.push_back(
        {.path = path, .values = std::move(values), .is_auto = node.scalar == kAuto});
  }

 private:
  static std::int64_t count(const YamlNode& node, const std::string& path) {
    YamlNode map;
    map.kind = YamlNode::Kind::kMap;
    map.where = node.where;
    map.entries.push_back({.key = "replicas", .where = node.where, .value = node});
    return Reader(map, path.substr(0, path.rfind('.')), {"replicas"})
        .integer("replicas", 1, kMaxGpus);
  }

  std::vector<YamlNode> values_of(const YamlNode& node, const std::string& path) const {
    if (node.kind == YamlNode::Kind::kList) {
      if (node.items.empty())
        fail_at(node.where,
                "search." + path + ": found an empty list; expected the values to choose from");
      return node.items;
    }
    if (node.kind == YamlNode::Kind::kNull) {
      fail_at(node.where,
              "search." + path + ": found nothing; expected a list, a range or a value");
    }
    std::vector<YamlNode> values;
    if (node.scalar == kAuto) {
      for (const std::string_view key : kAutoKeys) {
        if (!is_mesh_key(path, key)) continue;
        for (const std::string& value :
             auto_values(std::string(key), base_, gpus_.most, has_ffns_apart_)) {
          values.push_back(scalar_node(value, node.where));
        }
      }
      if (values.empty()) {
        std::string keys;
        for (const std::string_view key : kAutoKeys) {
          keys += (keys.empty() ? "" : key == kAutoKeys.back() ? " and " : ", ") + std::string(key);
        }
        fail_at(node.where, "search." + path +
                                ": found auto; expected a list or a range: auto is for " + keys +
                                " of a placement");
      }
      return values;
    }
    if (const auto range = parse_range(node)) {
      for (const std::int64_t value : *range) {
        values.push_back(scalar_node(std::to_string(value), node.where));
      }
      return values;
    }
    return {node};
  }

  Family& family_;
  const Scenario& base_;
  const GpuRange& gpus_;
  bool has_ffns_apart_ = false;  // some plan of the place that is read
};

GpuRange read_gpus(const YamlNode& search, const Scenario& base) {
  GpuRange gpus{.least = 1, .most = base.machine_spec.num_gpus};
  const YamlNode* node = search.find("gpus");
  if (node == nullptr) return gpus;
  const auto range = node->kind == YamlNode::Kind::kScalar
                         ? parse_range(*node)
                         : std::optional<std::vector<std::int64_t>>();
  if (range) {
    gpus = {.least = static_cast<int>(range->front()), .most = static_cast<int>(range->back())};
  } else {
    const Reader reader(search, "search", [&] {
      std::vector<std::string_view> keys;
      keys.reserve(search.entries.size());
      for (const YamlNode::Entry& entry : search.entries) keys.emplace_back(entry.key);
      return keys;
    }());
    gpus.most = static_cast<int>(reader.integer("gpus", 1, kMaxGpus));
  }
  if (gpus.most > base.machine_spec.num_gpus) {
    fail_at(node->where, "search.gpus: found " + std::to_string(gpus.most) + "; machine " +
                             base.machine_spec.name + " has " +
                             std::to_string(base.machine_spec.num_gpus));
  }
  return gpus;
}

// Those that `search` names; the scenario's own placement where it names none.
std::vector<Family> read_families(const YamlNode& root, const YamlNode& search,
                                  const Scenario& base, const GpuRange& gpus) {
  std::vector<Family> families;
  const bool has_placement = search.find("placement") != nullptr;
  const bool has_sides = search.find("disaggregation") != nullptr;
  const bool own_sides = root.find("disaggregation") != nullptr;
  for (const bool is_disaggregated : {false, true}) {
    const bool is_named = is_disaggregated ? has_sides : has_placement;
    const bool is_own = !has_placement && !has_sides && own_sides == is_disaggregated;
    if (!is_named && !is_own) continue;
    Family family{.is_disaggregated = is_disaggregated, .root = root};
    erase(family.root, "search");
    erase(family.root, is_disaggregated ? "placement" : "disaggregation");
    FamilyReader reader(family, base, gpus);
    for (const YamlNode::Entry& entry : search.entries) {
      const std::string_view other = is_disaggregated ? "placement" : "disaggregation";
      if (entry.key != "gpus" && entry.key != other) reader.read(entry.value, entry.key);
    }
    families.push_back(std::move(family));
  }
  return families;
}

}  // namespace

YamlNode scalar_node(const std::string& text, const Location& where) {
  YamlNode node;
  node.kind = YamlNode::Kind::kScalar;
  node.scalar = text;
  node.where = where;
  return node;
}

std::vector<std::string> auto_values(const std::string& key, const Scenario& base, int most_gpus,
                                     bool has_ffns_apart) {
  const ModelConfig& model = base.model_config;
  const bool has_experts = model.num_experts > 0;
  constexpr std::int64_t kMostStages = 4;
  constexpr std::int64_t kMostMicroBatches = 4;
  const int domain = topology_kind(base.machine_spec.kind).nvlink_domain_size(base.machine_spec);
  const std::int64_t in_domain = std::min({domain, base.machine_spec.num_gpus, most_gpus});
  if (key == "tp" || key == "ffn_tp") return texts(powers_of_two(in_domain));
  if (key == "pp") return texts(powers_of_two(std::min<std::int64_t>(kMostStages, most_gpus)));
  if (key == "dp") return texts(powers_of_two(has_experts || has_ffns_apart ? most_gpus : 1));
  if (key == "ep") {
    return has_experts ? std::vector<std::string>{"1", std::string(kFullEp)}
                       : std::vector<std::string>{"1"};
  }
  if (key == "cp") return texts(ways_of_context(model, most_gpus));
  if (key == "cp_weights") return {kCpWeightsNames.begin(), kCpWeightsNames.end()};
  if (key == "cp_prefill") return {kCpPrefillNames.begin(), kCpPrefillNames.end()};
  if (key == "cp_decodes") return {kCpDecodesNames.begin(), kCpDecodesNames.end()};
  if (key == "dp_rows") return {kDpRowsNames.begin(), kDpRowsNames.end()};
  if (key == "ffn_instances") return texts(numbers_of_ffn_instances(model, most_gpus));
  if (key == "num_micro_batches") return texts(numbers(1, kMostMicroBatches));
  if (key == "ffn_schedule") return {kFfnScheduleNames.begin(), kFfnScheduleNames.end()};
  return texts(numbers(1, most_gpus));
}

SearchSection read_search(const YamlNode& root, const Scenario& base) {
  const YamlNode& search = *root.find("search");
  if (base.speculative) {
    fail_at(base.where.at("engine"),
            "engine: found speculative, which no search prices: its closed forms know steps of one "
            "token alone; expected to leave it out, or orrery.sweep over plans");
  }
  SearchSection section{.gpus = read_gpus(search, base)};
  section.families = read_families(root, search, base, section.gpus);
  return section;
}

}  // namespace orrery
