#include "sim/explore/space.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <string_view>
#include <utility>

#include "sim/explore/for_each_index.h"
#include "sim/scenario/assembly.h"
#include "sim/scenario/costs.h"
#include "sim/scenario/disaggregated_run.h"
#include "sim/scenario/service.h"
#include "sim/units/text.h"

namespace orrery {

namespace {

// One choice of a value of each dimension.
class Combination {
 public:
  explicit Combination(const Family& family) : family_(family), at_(family.dimensions.size()) {}

  [[nodiscard]] bool next() {
    for (std::size_t i = at_.size(); i-- > 0;) {
      if (++at_[i] < family_.dimensions[i].values.size()) return true;
      at_[i] = 0;
    }
    return false;
  }
  [[nodiscard]] std::vector<std::pair<std::string, YamlNode>> values() const {
    std::vector<std::pair<std::string, YamlNode>> chosen;
    for (std::size_t i = 0; i < at_.size(); ++i) {
      const Dimension& dimension = family_.dimensions[i];
      chosen.emplace_back(dimension.path, dimension.values[at_[i]]);
    }
    for (auto& [path, value] : chosen) {
      if (path.ends_with(".ep") && value.scalar == kFullEp) {
        value.scalar = std::to_string(full_ep(chosen, path.substr(0, path.size() - 2)));
      }
    }
    return chosen;
  }

 private:
  using Chosen = std::vector<std::pair<std::string, YamlNode>>;

  // All ranks that experts may lie over: those of FFNs where these are apart, else of attention.
  [[nodiscard]] std::int64_t full_ep(const Chosen& chosen, const std::string& place) const {
    const auto ways = [&](const char* key) { return way(chosen, place + key, 1); };
    const std::int64_t instances = way(chosen, place + "ffn_instances", 0);
    return instances > 0 ? instances * ways("ffn_tp") : ways("dp") * ways("tp") * ways("cp");
  }
  // Of a mesh key that is searched, else of the scenario's own.
  [[nodiscard]] std::int64_t way(const Chosen& chosen, const std::string& path,
                                 std::int64_t otherwise) const {
    const YamlNode* node = &family_.root;
    for (const auto& [own, value] : chosen) {
      if (own == path) return std::atoll(value.scalar.c_str());
    }
    std::string_view rest = path;
    while (node != nullptr && !rest.empty()) {
      const std::size_t dot = rest.find('.');
      node = node->find(rest.substr(0, dot));
      rest = dot == std::string_view::npos ? std::string_view() : rest.substr(dot + 1);
    }
    return node == nullptr ? otherwise : std::atoll(node->scalar.c_str());
  }

  const Family& family_;
  std::vector<std::size_t> at_;
};

YamlNode& child(YamlNode& map, const std::string& key, const Location& where) {
  if (map.kind == YamlNode::Kind::kNull) map.kind = YamlNode::Kind::kMap;
  if (map.kind != YamlNode::Kind::kMap) {
    fail_at(where, "search: '" + key + "' is searched inside " + describe(map) + " of the " +
                       "scenario; expected a mapping there");
  }
  const auto found = std::ranges::find(map.entries, key, &YamlNode::Entry::key);
  if (found != map.entries.end()) return found->value;
  map.entries.push_back({.key = key, .where = where, .value = {}});
  map.entries.back().value.where = where;
  return map.entries.back().value;
}

void set_at(YamlNode& root, std::string_view path, const YamlNode& value) {
  YamlNode* node = &root;
  while (true) {
    const std::size_t dot = path.find('.');
    node = &child(*node, std::string(path.substr(0, dot)), value.where);
    if (dot == std::string_view::npos) break;
    path.remove_prefix(dot + 1);
  }
  *node = value;
}

// The first part of a message with its numbers and the name of the model left out, so that messages
// of one reason are equal.
std::string reason_of(std::string message) {
  const std::size_t key = message.find(": ");
  const std::size_t from = key == std::string::npos ? 0 : key + 2;
  if (message.compare(from, 7, "model \"") == 0) {
    const std::size_t end = message.find("\": ", from);
    if (end != std::string::npos) message.erase(from, end + 3 - from);
  }
  const std::string part = message.substr(0, message.find_first_of(":;(", from));
  std::string reason;
  char before = ' ';
  for (const char c : part) {
    const bool is_digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    const bool is_number = is_digit && std::isalpha(static_cast<unsigned char>(before)) == 0 &&
                           before != '-' && before != '_';
    if (!is_number) reason += c;
    if (is_number && (reason.empty() || reason.back() != 'N')) reason += 'N';
    if (!is_digit && c != '.') before = c;  // llama-3.1-405b is a name
  }
  if (reason.ends_with(' ')) reason.pop_back();
  return reason;
}

class SpaceBuilder {
 public:
  SpaceBuilder(const std::filesystem::path& file, const ProjectPaths& paths, GpuRange gpus)
      : file_(file), paths_(paths), gpus_(gpus) {}

  void add(const Family& family) {
    double size = 1;
    for (const Dimension& dimension : family.dimensions) {
      size *= static_cast<double>(dimension.values.size());
    }
    if (static_cast<double>(values_.size()) + size > kMostCombinations) {
      fail_at({.file = file_.string(), .line = 0, .column = 0, .changed_by = {}},
              "search: spans " + format_number(size) + " combinations; expected at most " +
                  std::to_string(kMostCombinations));
    }
    Combination combination(family);
    do {
      values_.push_back({&family, combination.values()});
    } while (combination.next());
  }

  // Shapes in the order of their combinations, whatever thread looked at them.
  Space build(const Scenario& base, int threads) {
    drop_equal();
    std::vector<Found> found(values_.size());
    for_each_index(values_.size(), threads, [&](std::size_t i) {
      found[i] = look_at(*values_[i].family, values_[i].chosen, base);
    });
    for (std::size_t i = 0; i < found.size(); ++i) add_shape(*values_[i].family, found[i]);
    return take();
  }

 private:
  struct Choice {
    const Family* family = nullptr;
    std::vector<std::pair<std::string, YamlNode>> chosen;
  };
  // A combination, and why it cannot be.
  struct Found {
    Shape shape;
    std::int64_t own_replicas = 0;  // 0: the scenario says none
    std::int64_t own_prefill_replicas = 0;
    std::string problem;
  };

  // Where dp * tp is 1, ep over all of them is 1 too.
  void drop_equal() {
    std::set<std::vector<std::string>> known;
    std::erase_if(values_, [&](const Choice& choice) {
      std::vector<std::string> key{choice.family->is_disaggregated ? "sides" : "one"};
      for (const auto& [path, value] : choice.chosen) key.push_back(path + "=" + value.scalar);
      return !known.insert(std::move(key)).second;
    });
    space_.num_combinations = std::ssize(values_);
  }

  Found look_at(const Family& family, const std::vector<std::pair<std::string, YamlNode>>& chosen,
                const Scenario& base) const {
    Found found;
    YamlNode root = family.root;
    bool is_own_model = true;  // and machine
    for (const auto& [path, value] : chosen) {
      set_at(root, path, value);
      found.shape.assignments.push_back(path + "=" + value.scalar);
      is_own_model = is_own_model && path != "model.config" && path != "model.layers" &&
                     !path.starts_with("machine");
    }
    const YamlNode one = scalar_node("1", root.where);
    if (family.is_disaggregated) {
      found.own_prefill_replicas = set_own(root, "disaggregation.prefill.replicas", one);
      found.own_replicas = set_own(root, "disaggregation.decode.replicas", one);
    } else {
      found.own_replicas = set_own(root, "placement.replicas", one);
    }
    try {
      if (is_own_model) check_place(family, root, base);
      Scenario scenario = read_scenario(root, file_, paths_);
      if (family.is_disaggregated) (void)memory_budget(prefill_side(scenario));
      (void)memory_budget(family.is_disaggregated ? decode_side(scenario) : scenario);
      if (scenario.disaggregation) {
        found.shape.gpus_per_prefill = num_gpus(scenario.disaggregation->prefill.placement);
        found.shape.gpus_per_replica = num_gpus(scenario.disaggregation->decode.placement);
      } else {
        found.shape.gpus_per_replica = num_ranks(scenario.mesh);
      }
      found.shape.scenario = std::make_shared<const Scenario>(std::move(scenario));
    } catch (const ScenarioError& error) {
      if (error.message().find("unknown ") != std::string::npos) throw;  // no plan's fault
      found.problem = error.message();
    }
    return found;
  }

  // What most combinations fail by, without reading all of the scenario.
  static void check_place(const Family& family, const YamlNode& root, const Scenario& base) {
    const YamlNode* place = root.find(family.is_disaggregated ? "disaggregation" : "placement");
    if (family.is_disaggregated) {
      const SideMachines machine{.prefill = &base.machine_spec, .decode = &base.machine_spec};
      const Disaggregation sides =
          read_disaggregation(*place, base.model_config, base.precision.kv_cache, machine);
      const bool is_auto = std::ranges::any_of(family.dimensions, &Dimension::is_auto);
      if (is_auto && !held_alike(sides)) {
        fail_at(place->where,
                "disaggregation: prefill and decode differ in tp, pp or kv_cache, which auto "
                "leaves out; name the values of both sides to search them");
      }
    } else {
      (void)read_placement(*place, base.model_config, base.machine_spec);
    }
  }

  // What stood there, which is what a search that does not name it takes.
  static std::int64_t set_own(YamlNode& root, const std::string& path, const YamlNode& one) {
    const YamlNode* node = &root;
    for (std::string_view rest = path; node != nullptr;) {
      const std::size_t dot = rest.find('.');
      node = node->find(rest.substr(0, dot));
      if (dot == std::string_view::npos) break;
      rest.remove_prefix(dot + 1);
    }
    const std::int64_t own = node == nullptr ? 0 : std::atoll(node->scalar.c_str());
    set_at(root, path, one);
    return own;
  }

  void add_shape(const Family& family, Found& found) {
    if (found.problem.empty()) found.problem = add_candidates(family, found);
    if (found.problem.empty()) {
      space_.shapes.push_back(std::move(found.shape));
    } else {
      leave_out(found.shape, found.problem);
    }
  }

  static std::vector<std::int64_t> choices(const std::vector<std::int64_t>& searched,
                                           std::int64_t own, std::int64_t most) {
    if (!searched.empty()) return searched;
    if (own > 0) return {own};
    std::vector<std::int64_t> all;
    for (std::int64_t count = 1; count <= most; ++count) all.push_back(count);
    return all;
  }

  // Why there are none: the GPUs that its replicas take, and those that the search allows.
  std::string add_candidates(const Family& family, const Found& found) {
    const Shape& shape = found.shape;
    const double price = usd_per_gpu_hour(shape.scenario->machine_spec);
    const std::size_t before = space_.candidates.size();
    std::int64_t least = kMaxGpus;
    std::int64_t most = 0;
    const auto add = [&](std::int64_t replicas, std::int64_t prefill) {
      const std::int64_t gpus =
          replicas * shape.gpus_per_replica + prefill * shape.gpus_per_prefill;
      least = std::min(least, gpus);
      most = std::max(most, gpus);
      if (gpus < gpus_.least || gpus > gpus_.most) return;
      space_.candidates.push_back({.shape = space_.shapes.size(),
                                   .replicas = static_cast<int>(replicas),
                                   .prefill_replicas = static_cast<int>(prefill),
                                   .num_gpus = static_cast<int>(gpus),
                                   .usd_per_hour = price * static_cast<double>(gpus)});
    };
    for (const std::int64_t replicas :
         choices(family.replicas, found.own_replicas, gpus_.most / shape.gpus_per_replica)) {
      if (!shape.is_disaggregated()) {
        add(replicas, 0);
        continue;
      }
      for (const std::int64_t prefill : choices(family.prefill_replicas, found.own_prefill_replicas,
                                                gpus_.most / shape.gpus_per_prefill)) {
        add(replicas, prefill);
      }
    }
    if (space_.candidates.size() > before) return "";
    const int smallest = shape.gpus_per_replica + shape.gpus_per_prefill;
    const auto range = [](std::int64_t from, std::int64_t to) {
      return std::to_string(from) + (from == to ? "" : " to " + std::to_string(to));
    };
    return "placement: takes " +
           (most == 0 ? std::to_string(smallest) + " or more" : range(least, most)) +
           " GPUs; the search allows " + range(gpus_.least, gpus_.most);
  }

  void leave_out(const Shape& shape, const std::string& problem) {
    const std::string reason = reason_of(problem);
    auto known = std::ranges::find(space_.left_out, reason, &LeftOut::reason);
    if (known == space_.left_out.end()) {
      std::string example;
      for (const std::string& assignment : shape.assignments) {
        example += (example.empty() ? "" : " ") + assignment;
      }
      space_.left_out.push_back(
          {.reason = reason, .count = 0, .example = example + ": " + problem});
      known = space_.left_out.end() - 1;
    }
    ++known->count;
  }

  Space take() {
    std::ranges::stable_sort(space_.left_out, std::greater<>(), &LeftOut::count);
    const bool is_priced = std::ranges::all_of(
        space_.candidates, [](const Candidate& plan) { return plan.usd_per_hour > 0; });
    std::ranges::stable_sort(space_.candidates, {}, [&](const Candidate& plan) {
      return std::pair(is_priced ? plan.usd_per_hour : plan.num_gpus, plan.num_gpus);
    });
    return std::move(space_);
  }

  std::filesystem::path file_;
  ProjectPaths paths_;
  GpuRange gpus_;
  std::vector<Choice> values_;
  Space space_;
};

// What a search does not vary the load of, or count the GPUs of.
void check_searchable(const Scenario& base) {
  at_key(base, "autoscaling", [&] {
    if (base.autoscaling) {
      throw std::invalid_argument(
          "found autoscaling, which is simulated by 'orrery run' and not searched; expected a "
          "placement of fixed replicas");
    }
  });
  at_key(base, "placement", [&] {
    if (base.ffn) {
      throw std::invalid_argument(
          "found FFNs on a machine of their own (ffn), which 'orrery run' simulates and no search "
          "prices; expected one machine, or orrery.sweep over plans");
    }
  });
  at_key(base, "disaggregation", [&] {
    if (base.disaggregation && base.disaggregation->prefill_setting) {
      throw std::invalid_argument(
          "found a machine, provider or cost of one side, which 'orrery run' simulates and no "
          "search prices; expected one machine, or orrery.sweep over plans");
    }
  });
  at_key(base, "workload", [&] {
    if (!make_workload(base.workload, base.seed).turns.empty()) {
      throw std::invalid_argument(
          "found sessions, which are simulated by 'orrery run' and not searched; expected a trace "
          "without them, poisson, gamma or closed_loop");
    }
  });
}

}  // namespace

Space read_space(const YamlNode& root, const std::filesystem::path& file, const ProjectPaths& paths,
                 int threads) {
  const YamlNode* search = root.find("search");
  if (search == nullptr || search->kind != YamlNode::Kind::kMap || search->entries.empty()) {
    fail_at(search == nullptr ? root.where : search->where,
            "found no search; expected a section such as search: {placement: auto}");
  }
  YamlNode own = root;
  std::erase_if(own.entries, [](const YamlNode::Entry& entry) { return entry.key == "search"; });
  const Scenario base = read_scenario(own, file, paths);
  check_searchable(base);
  const SearchSection section = read_search(root, base);
  SpaceBuilder builder(file, paths, section.gpus);
  for (const Family& family : section.families) builder.add(family);
  return builder.build(base, threads);
}

int num_ffn_gpus(const Space& space, const Candidate& candidate) {
  const Scenario& scenario = *space.shapes[candidate.shape].scenario;
  if (!scenario.disaggregation) return candidate.replicas * num_ffn_ranks(scenario.mesh);
  return candidate.replicas * num_ffn_ranks(scenario.disaggregation->decode.placement.mesh) +
         candidate.prefill_replicas *
             num_ffn_ranks(scenario.disaggregation->prefill.placement.mesh);
}

Scenario scenario_of(const Space& space, const Candidate& candidate) {
  Scenario scenario = *space.shapes[candidate.shape].scenario;
  scenario.replicas = candidate.replicas;
  if (scenario.disaggregation) {
    scenario.disaggregation->decode.placement.replicas = candidate.replicas;
    scenario.disaggregation->prefill.placement.replicas = candidate.prefill_replicas;
  }
  return scenario;
}

std::vector<std::string> assignments_of(const Space& space, const Candidate& candidate) {
  const Shape& shape = space.shapes[candidate.shape];
  std::vector<std::string> assignments = shape.assignments;
  const std::string place = shape.is_disaggregated() ? "disaggregation.decode." : "placement.";
  assignments.push_back(place + "replicas=" + std::to_string(candidate.replicas));
  if (shape.is_disaggregated()) {
    assignments.push_back("disaggregation.prefill.replicas=" +
                          std::to_string(candidate.prefill_replicas));
  }
  return assignments;
}

}  // namespace orrery
