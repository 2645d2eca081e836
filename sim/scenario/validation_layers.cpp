#include "sim/scenario/validation_layers.h"

#include <algorithm>
#include <array>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>

#include "kernels/executable.h"
#include "sim/scenario/assembly.h"
#include "sim/scenario/experts.h"
#include "sim/scenario/keys.h"
#include "sim/scenario/lengths.h"
#include "sim/scenario/moe_layer.h"
#include "sim/units/shown.h"

namespace orrery {
namespace {

// As many sets of weights as that takes, but no more than a graph should have layers.
constexpr double kSetBytes = 4.8e10;
constexpr int kMostSets = 16;

// Runs `part`; what is wrong with the layer is said with its name, at `where`.
template <typename Part>
auto of_layer(const Location& where, const std::string& name, Part part) {
  try {
    return part();
  } catch (const ScenarioError&) {
    throw;
  } catch (const std::invalid_argument& error) {
    fail_at(where, "validate.layers: layer '" + shown(name) + "': " + error.what());
  }
}

// Whatever the layers are.
void check_whole(const Reader& reader, const Scenario& scenario) {
  if (scenario.model_config.num_experts == 0) {
    reader.fail("layers", "model \"" + scenario.model_config.name +
                              "\" has no routed experts, whose layers could be timed; expected a "
                              "mixture of experts");
  }
  if (scenario.moe.design == MoeDesign::kFused) {
    reader.fail("layers",
                "found moe design fused, which is simulated and not executed; expected a scenario "
                "with another, such as moe: {design: shuffling}");
  }
  if (scenario.disaggregation) {
    reader.fail("layers", "found layers beside disaggregation; expected placement in its place");
  }
  const Mesh& mesh = scenario.mesh;
  if (mesh.pp > 1 || mesh.cp > 1 || mesh.ffn_instances > 0 || mesh.two_batch_overlap) {
    reader.fail("layers",
                "found a placement with pp, cp, ffn_instances or two_batch_overlap, of whose "
                "layers none runs by itself; expected one of dp, tp and ep alone");
  }
}

MoeSpec read_layer_moe(const YamlNode& node, const MoeSpec& of_scenario) {
  for (const std::string_view key : {"experts", "eplb"}) {
    const YamlNode* const found = node.find(key);
    if (found == nullptr) continue;
    fail_at(found->where, "validate.layers: found moe." + std::string(key) +
                              ", which all layers of a run have in common; expected it in the "
                              "scenario's moe");
  }
  MoeSpec spec = read_moe(node, of_scenario);
  spec.experts = of_scenario.experts;
  spec.eplb = of_scenario.eplb;
  return spec;
}

LaunchMode read_layer_mode(const Reader& reader) {
  constexpr std::array<std::string_view, 2> kModes = {"graph", "eager"};
  return reader.choice("mode", kModes) == 0 ? LaunchMode::kGraph : LaunchMode::kEager;
}

// A kernel that is the layer sends rows by itself, whatever the scenario's design does.
ExpertComm comm_of(const Reader& reader, const MoeSpec& moe, const Mesh& mesh) {
  if (reader.has("expert_comm")) {
    return static_cast<ExpertComm>(reader.choice("expert_comm", kExpertCommNames));
  }
  return moe.design == MoeDesign::kPersistent ? ExpertComm::kAllToAll : mesh.expert_comm;
}

void check_layer(const Reader& root, const Reader& reader, const Scenario& scenario,
                 const ValidationLayer& layer) {
  of_layer(reader.node().where, layer.name, [&] {
    const Scenario own = scenario_of(scenario, layer);
    const YamlNode* const placement = root.node().find("placement");
    const bool says_comm = reader.has("expert_comm") ||
                           (placement != nullptr && placement->find("expert_comm") != nullptr);
    check_moe_chunks(own.mesh, layer.moe.design);
    check_dispatch(layer.moe.design, own.mesh, own, says_comm);
    check_moe_design(own.model_config, lowering_options(own));
    check_layer_mode(layer.mode.value_or(LaunchMode::kEager), layer_plan(scenario, layer));
  });
}

ValidationLayer read_layer(const Reader& root, const YamlNode& node, const Scenario& scenario) {
  const Reader reader(node, "validate.layers", key_names("layer"));
  reader.require({"tokens"});
  ValidationLayer layer{.tokens = reader.integer("tokens", 1, kMaxTokens), .moe = scenario.moe};
  if (reader.has("moe")) layer.moe = read_layer_moe(reader.at("moe"), scenario.moe);
  if (reader.has("mode")) layer.mode = read_layer_mode(reader);
  layer.expert_comm = comm_of(reader, layer.moe, scenario.mesh);
  layer.split_shared_expert = reader.has("split_shared_expert")
                                  ? reader.boolean("split_shared_expert")
                                  : scenario.mesh.split_shared_expert;
  layer.name = reader.has("name")
                   ? reader.text("name")
                   : std::string(to_text(layer.moe.design)) + "_" + std::to_string(layer.tokens);
  require_file_safe(reader, layer.name);
  if (layer.moe.design == MoeDesign::kFused) {
    reader.fail("moe", "found design fused, which is simulated and not executed; expected another");
  }
  check_layer(root, reader, scenario, layer);
  return layer;
}

}  // namespace

void read_layers(const Reader& root, Scenario& scenario) {
  const Reader reader(root.at("validate"), "validate", key_names("validate"));
  if (!reader.has("layers")) return;
  const YamlNode& list = list_at(reader, "layers", "layers");
  check_whole(reader, scenario);
  std::set<std::string> names;
  for (const ValidationStep& step : scenario.validation.steps) names.insert(step.name);
  for (const YamlNode& node : list.items) {
    ValidationLayer layer = read_layer(root, node, scenario);
    if (!names.insert(layer.name).second) {
      fail_at(node.where, "validate.layers: a second layer or step named '" + shown(layer.name) +
                              "'; give it a name of its own");
    }
    scenario.validation.layers.push_back(std::move(layer));
  }
}

Scenario scenario_of(const Scenario& scenario, const ValidationLayer& layer) {
  Scenario own = scenario;
  own.moe = layer.moe;
  own.mesh.moe_chunks = layer.moe.chunks;
  own.mesh.expert_comm = layer.expert_comm;
  own.mesh.split_shared_expert = layer.split_shared_expert;
  return own;
}

std::vector<LaunchMode> modes_of(const Scenario& scenario, const ValidationLayer& layer) {
  if (layer.mode) return {*layer.mode};
  if (has_host_syncs(layer.moe, scenario_of(scenario, layer).mesh)) return {LaunchMode::kEager};
  std::vector<LaunchMode> modes;
  for (const LaunchMode given : scenario.validation.modes) {
    const LaunchMode mode = given == LaunchMode::kMegakernel ? LaunchMode::kGraph : given;
    if (std::ranges::find(modes, mode) == modes.end()) modes.push_back(mode);
  }
  return modes;
}

Plan layer_plan(const Scenario& scenario, const ValidationLayer& layer) {
  const Scenario own = scenario_of(scenario, layer);
  return parallelize(moe_layer_plan(own.model_config, layer.tokens, lowering_options(own)),
                     own.mesh);
}

int num_layer_sets(const Scenario& scenario) {
  const Plan whole = moe_layer_plan(scenario.model_config, 1, lowering_options(scenario));
  const double fit = kSetBytes / memory_of(whole, 0).weights.value();
  return std::clamp(static_cast<int>(fit), 1, kMostSets);
}

void check_executed_layers(const Scenario& scenario) {
  for (const ValidationLayer& layer : scenario.validation.layers) {
    of_layer(scenario.where.at("validate"), layer.name, [&] {
      if (layer.moe.design == MoeDesign::kPersistent && scenario.mesh.num_redundant_experts > 0) {
        throw std::invalid_argument(
            "copies of experts are executed with design shuffling, not persistent; expected "
            "num_redundant_experts 0");
      }
      const std::vector<Refusal> refused = refusals(layer_plan(scenario, layer));
      if (refused.empty()) return;
      throw std::invalid_argument("it has ops that cannot be executed on GPUs: " +
                                  to_text(refused));
    });
  }
}

}  // namespace orrery
