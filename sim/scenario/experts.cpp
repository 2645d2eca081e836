#include "sim/scenario/experts.h"

#include <stdexcept>
#include <string>

namespace orrery {

namespace {

// Whether the design can dispatch rows as each mesh says.
void check_dispatch(const Scenario& scenario) {
  const auto check = [design = scenario.moe.design](const Mesh& mesh) {
    if (design == MoeDesign::kPersistent) {
      check_persistent_mesh(mesh);
    } else {
      check_expert_comm(mesh, design == MoeDesign::kFused);
    }
  };
  check(scenario.mesh);
  if (scenario.disaggregation) check(scenario.disaggregation->prefill.placement.mesh);
}

// Which slots the ranks of each mesh hold.
void place_experts(Scenario& scenario) {
  const auto place = [&](Mesh& mesh) {
    mesh.expert_load = slot_load(scenario.expert_shares, scenario.moe, scenario.model_config, mesh,
                                 scenario.machine_spec.gpus_per_node);
  };
  place(scenario.mesh);
  if (scenario.disaggregation) {
    place(scenario.disaggregation->prefill.placement.mesh);
    place(scenario.disaggregation->decode.placement.mesh);
  }
}

}  // namespace

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
    scenario.moe = {};
    return;
  }
  try {
    check_dispatch(scenario);
  } catch (const std::invalid_argument& error) {
    root.fail(scenario.disaggregation ? "disaggregation" : "placement", error.what());
  }
  if (is_fused) {
    if (!scenario.expert_load.is_skew()) {
      root.fail("model",
                "expert_load: tables of fused experts are of balanced, uniform or power-law "
                "choices; expected one of these, or another moe.design");
    }
    return;
  }
  try {
    LoweringOptions options{.precision = scenario.precision};
    set_moe(scenario.moe, options);
    check_moe_design(scenario.model_config, options);
  } catch (const std::invalid_argument& error) {
    root.fail(
        root.has("moe") ? "moe" : "engine",
        std::string(error.what()) + (root.has("moe") ? "" : "; expected moe: {design: fused}"));
  }
  try {
    scenario.expert_shares =
        expert_load(scenario.expert_load, scenario.model_config, directory, scenario.paths.root);
  } catch (const std::invalid_argument& error) {
    root.fail("model", std::string("expert_load: ") + error.what());
  }
  try {
    place_experts(scenario);
  } catch (const std::invalid_argument& error) {
    root.fail(root.has("moe") ? "moe" : "model", error.what());
  }
}

}  // namespace orrery
