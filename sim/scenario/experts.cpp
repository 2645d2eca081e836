#include "sim/scenario/experts.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "sim/parallel/rewrite.h"
#include "sim/scenario/expert_site.h"

namespace orrery {

namespace {

// Copies are between GPUs of one host: each stage's ranks must lie on one.
void check_hosts_of_copies(const Mesh& mesh, const MachineSetting& setting) {
  if (mesh.expert_comm != ExpertComm::kCopies) return;
  const int gpus = setting.machine_spec.gpus_per_node;
  const int of_stage = num_ranks(mesh) / mesh.pp;
  for (int first = 0; first < num_ranks(mesh); first += of_stage) {
    if (first / gpus == (first + of_stage - 1) / gpus) continue;
    throw std::invalid_argument("expert_comm is copies with dp * tp = " + std::to_string(of_stage) +
                                " on several hosts of " + std::to_string(gpus) +
                                " GPUs, expected the ranks of a stage on one; or expert_comm "
                                "eager");
  }
}

// A mesh, and where the file says it.
struct PlacedMesh {
  const Mesh& mesh;
  const MachineSetting& setting;  // of its experts
  std::string path;
  const YamlNode* node;  // null where the file leaves it out
};

std::vector<PlacedMesh> placed_meshes(const Reader& root, const Scenario& scenario) {
  if (!scenario.disaggregation) {
    return {{scenario.mesh, ffn_setting(scenario), "placement", root.node().find("placement")}};
  }
  const YamlNode& node = root.at("disaggregation");
  const Disaggregation& placed = *scenario.disaggregation;
  return {{placed.prefill.placement.mesh, prefill_setting(scenario), "disaggregation.prefill",
           node.find(kPrefillSide)},
          {scenario.mesh, scenario, "disaggregation.decode", node.find(kDecodeSide)}};
}

// Nobody has written `all_to_all`, which is of another design.
void check_default_comm(const Mesh& seen) {
  if (seen.dp == 1) return;
  throw std::invalid_argument(
      "expert_comm is not said, and its default, all_to_all, dispatches rows of a fused moe op; "
      "expected expert_comm: eager, graph, tokens, dedup, dedup_graph or copies for design "
      "shuffling" +
      (seen.ep % seen.dp == 0 ? "" : ", with ep: " + std::to_string(seen.dp)) +
      ", or moe: {design: fused}");
}

void check_dispatches(const Reader& root, const Scenario& scenario) {
  for (const PlacedMesh& placed : placed_meshes(root, scenario)) {
    try {
      const bool says_comm = placed.node != nullptr && placed.node->find("expert_comm") != nullptr;
      check_dispatch(scenario.moe.design, placed.mesh, placed.setting, says_comm);
    } catch (const std::invalid_argument& error) {
      fail_at(placed.node == nullptr ? root.node().where : placed.node->where,
              placed.path + ": " + error.what());
    }
  }
}

// Experts that there are not are not exchanged.
void check_no_dispatch(const Reader& root, const Scenario& scenario) {
  for (const PlacedMesh& placed : placed_meshes(root, scenario)) {
    if (placed.mesh.expert_comm == ExpertComm::kAllToAll) continue;
    const auto name = kExpertCommNames[static_cast<std::size_t>(placed.mesh.expert_comm)];
    fail_at(placed.node->find("expert_comm")->where,
            placed.path + ".expert_comm: found " + std::string(name) + ", but model \"" +
                scenario.model_config.name +
                "\" has no routed experts, between which rows would travel; expected placement "
                "without expert_comm");
  }
}

// On all meshes, each of which must take them.
void set_chunks(Scenario& scenario) {
  std::vector<Mesh*> meshes{&scenario.mesh};
  if (scenario.disaggregation) {
    meshes.push_back(&scenario.disaggregation->prefill.placement.mesh);
    meshes.push_back(&scenario.disaggregation->decode.placement.mesh);
  }
  for (Mesh* mesh : meshes) {
    mesh->moe_chunks = scenario.moe.chunks;
    check_moe_chunks(*mesh, scenario.moe.design);
  }
}

std::vector<const Mesh*> meshes_of(const Scenario& scenario) {
  if (!scenario.disaggregation) return {&scenario.mesh};
  return {&scenario.disaggregation->prefill.placement.mesh,
          &scenario.disaggregation->decode.placement.mesh};
}

std::vector<Precision> precisions_of(const Scenario& scenario) {
  if (!scenario.disaggregation) return {scenario.precision};
  return {precision_of(scenario.disaggregation->prefill, scenario.precision),
          precision_of(scenario.disaggregation->decode, scenario.precision)};
}

// Tables of the fused op are of named distributions.
void check_fused(const Reader& root, const Scenario& scenario) {
  if (!scenario.moe.eplb) return;
  root.fail("moe",
            "found eplb beside design fused, whose tables do not tell ranks apart; expected "
            "another design, such as shuffling");
}

// The most ways in which experts can be spread over the ranks of a stage of `mesh`; 1: none.
std::int64_t most_ways(const ModelConfig& model, const Mesh& mesh) {
  const std::int64_t ranks = num_ranks(mesh) / mesh.pp;
  const std::int64_t experts = model.num_experts + mesh.num_redundant_experts;
  std::int64_t ways = ranks;
  while (ways > 1 && (ranks % ways != 0 || experts % ways != 0 || ways % mesh.dp != 0)) --ways;
  return ways;
}

void check_eplb(const Reader& root, const Scenario& scenario) {
  const std::string found = "found eplb";
  std::int64_t ways = 1;
  bool has_experts_apart = false;
  for (const Mesh* mesh : meshes_of(scenario)) {
    ways = std::max(ways, most_ways(scenario.model_config, *mesh));
    has_experts_apart = has_experts_apart || mesh->ep > 1;
    if (mesh->ffn_instances > 0) {
      root.fail("moe", found +
                           " beside ffn_instances, whose experts are not placed anew; expected "
                           "placement without ffn_instances");
    }
    const std::int64_t most = scenario.model_config.num_experts * (mesh->ep - 1);
    if (mesh->ep > 1 && mesh->num_redundant_experts > most) {
      root.fail("moe", found + " with num_redundant_experts " +
                           std::to_string(mesh->num_redundant_experts) + "; expected at most " +
                           std::to_string(most) + ", with which each of " +
                           std::to_string(mesh->ep) + " ranks holds every expert");
    }
  }
  if (!has_experts_apart) {
    root.fail("moe", found + " with ep 1, where every rank holds every expert; expected " +
                         (ways > 1 ? "placement.ep: " + std::to_string(ways)
                                   : std::string("such as placement: {dp: 8, ep: 8}")));
  }
  if (scenario.expert_shares.shares.empty()) {
    root.fail("moe", found +
                         " beside an even expert_load, which leaves nothing to balance; "
                         "expected model.expert_load: {zipf: 1.0}, a power law or a trace");
  }
}

void check_changes(const Reader& root, const Scenario& scenario) {
  if (scenario.moe.eplb) check_eplb(root, scenario);
  const auto is_alone = [](const Mesh* mesh) { return mesh->ep == 1; };
  if (scenario.expert_load.drift && scenario.expert_load.drift->share > 0 &&
      std::ranges::all_of(meshes_of(scenario), is_alone)) {
    root.fail("model",
              "expert_load.drift: found ep 1, where it is all one which expert is chosen most; "
              "expected placement.ep of at least 2, or no drift");
  }
}

// Which slots the ranks of each mesh hold.
void place_experts(Scenario& scenario) {
  const auto place = [&](Mesh& mesh, const MachineSetting& setting, const Precision& precision) {
    place_experts(scenario.expert_shares, scenario.moe, scenario.model_config,
                  expert_site(scenario, setting, mesh, precision), mesh);
  };
  place(scenario.mesh, ffn_setting(scenario), scenario.precision);
  if (scenario.disaggregation) {
    const std::vector<Precision> precisions = precisions_of(scenario);
    place(scenario.disaggregation->prefill.placement.mesh, prefill_setting(scenario),
          precisions.front());
    place(scenario.disaggregation->decode.placement.mesh, scenario, precisions.back());
  }
}

}  // namespace

namespace {

// Fails at `moe`, whose name stands before the message, or at the profile's.
[[noreturn]] void fail_at_moe(const Reader& root, std::string_view message) {
  if (!root.has("moe")) root.fail("engine", std::string(message));
  constexpr std::string_view kName = "moe ";
  if (message.starts_with(kName)) message.remove_prefix(kName.size());
  root.fail("moe", std::string(message));
}

}  // namespace

void check_dispatch(MoeDesign design, const Mesh& mesh, const MachineSetting& setting,
                    bool says_comm) {
  if (design == MoeDesign::kPersistent) {
    check_persistent_mesh(mesh);
  } else {
    // Rows that are dealt out over cp are dispatched as those of data-parallel ranks.
    const Mesh seen = mesh.cp_decodes == CpDecodes::kDealt ? weights_mesh(mesh) : mesh;
    const bool is_fused = design == MoeDesign::kFused;
    if (!is_fused && !says_comm) check_default_comm(seen);
    check_expert_comm(mesh, is_fused);
    if (seen.dp != mesh.dp) check_expert_comm(seen, is_fused);
  }
  check_hosts_of_copies(mesh, setting);
}

void read_experts(const Reader& root, const std::filesystem::path& directory, Scenario& scenario) {
  scenario.moe = scenario.engine_profile.moe;
  if (root.has("moe")) {
    scenario.moe = read_moe(root.at("moe"), scenario.moe);
  }
  const bool is_fused = scenario.moe.design == MoeDesign::kFused;
  if (scenario.model_config.num_experts == 0) {
    const std::string none = "model \"" + scenario.model_config.name + "\" has no routed experts";
    if (root.has("moe") && scenario.moe != MoeSpec{}) {
      root.fail("moe", none);
    }
    if (!scenario.expert_load.is_skew()) {
      fail_at(root.at("model").find("expert_load")->where,
              "model.expert_load: " + none + " whose load could be given");
    }
    check_no_dispatch(root, scenario);
    scenario.moe = {};
    return;
  }
  try {
    set_chunks(scenario);
  } catch (const std::invalid_argument& error) {
    fail_at_moe(root, error.what());
  }
  check_dispatches(root, scenario);
  try {
    for (const Precision& precision : precisions_of(scenario)) {
      LoweringOptions options{.precision = precision};
      set_moe(scenario.moe, options);
      check_moe_design(scenario.model_config, options);
    }
  } catch (const std::invalid_argument& error) {
    fail_at_moe(root, std::string(error.what()) +
                          (root.has("moe") ? "" : "; expected moe: {design: fused}"));
  }
  if (is_fused) {
    check_fused(root, scenario);
    if (!scenario.expert_load.is_skew()) {
      root.fail("model",
                "expert_load: tables of fused experts are of balanced, uniform or power-law "
                "choices; expected one of these, or another moe.design");
    }
    return;
  }
  try {
    scenario.expert_drift =
        expert_drift(scenario.expert_load, scenario.model_config, directory, scenario.paths.root);
    scenario.expert_shares = scenario.expert_drift.loads.front();
  } catch (const std::invalid_argument& error) {
    root.fail("model", std::string("expert_load: ") + error.what());
  }
  try {
    place_experts(scenario);
  } catch (const std::invalid_argument& error) {
    root.fail(root.has("moe") ? "moe" : "model", error.what());
  }
  check_changes(root, scenario);
}

}  // namespace orrery
