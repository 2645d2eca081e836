#include "sim/scenario/executable.h"

#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/executable.h"
#include "sim/parallel/halves.h"
#include "sim/scenario/assembly.h"
#include "sim/scenario/disaggregated_run.h"
#include "sim/scenario/validation_layers.h"
#include "sim/serve/executed_tiers.h"

namespace orrery {
namespace {

// Before steps are known, those of a prefill and a decode on each data-parallel rank: they have
// every kind of op.
std::vector<ValidationStep> usual_steps(const Scenario& scenario) {
  const std::int64_t dp = scenario.mesh.dp;
  const std::vector<PrefillChunk> chunks(static_cast<std::size_t>(dp), {.query = 16});
  return {{.name = "prefill", .batch = {.prefill = chunks}},
          {.name = "decode", .batch = {.num_decodes = dp, .decode_context = 16 * dp}}};
}

// Names the ops of the steps' plans that no kernel here executes.
void check_kernels(const Scenario& scenario, std::span<const ValidationStep> steps) {
  for (const ValidationStep& step : steps) {
    at_key(scenario, "model", [&] {
      const std::vector<Refusal> refused = refusals(executed_plan(
          scenario.model_config, step.batch, lowering_options(scenario), scenario.mesh));
      if (refused.empty()) return;
      throw std::invalid_argument("step '" + step.name +
                                  "' has ops that cannot be executed on GPUs: " + to_text(refused));
    });
  }
}

void check_ffns(const Scenario& scenario) {
  if (scenario.ffn) {
    throw std::invalid_argument(
        "found FFNs on a machine of their own (ffn), which is simulated and not executed; "
        "expected ffn_instances on the machine of attention");
  }
  const Mesh& mesh = scenario.mesh;
  if (mesh.ffn_instances > 1 || (mesh.ffn_instances == 1 && mesh.tp > 1)) {
    throw std::invalid_argument("found ffn_instances " + std::to_string(mesh.ffn_instances) +
                                " with tp " + std::to_string(mesh.tp) +
                                ", which is simulated and not executed; expected ffn_instances 1 "
                                "(of any ffn_tp) with tp 1");
  }
}

// That GPUs move what is moved between the sides.
void check_transfers(const Scenario& scenario) {
  const Disaggregation& placed = *scenario.disaggregation;
  if (placed.has_two_machines) {
    throw std::invalid_argument(
        "prefill and decode have machines of their own, which is simulated and not executed; "
        "expected one machine, without prefill.machine and decode.machine");
  }
  const Precision prefill = prefill_side(scenario).precision;
  const Precision decode = decode_side(scenario).precision;
  const auto require_alike = [](std::string_view key, DType there, DType here,
                                const std::string& which) {
    if (there == here) return;
    throw std::invalid_argument(std::string(key) + " is " + std::string(to_text(there)) +
                                " for prefill and " + std::string(to_text(here)) + " for decode, " +
                                which +
                                " simulated and not executed; expected the same on both sides");
  };
  require_alike("kv_cache", prefill.kv_cache, decode.kv_cache, "a cast that is");
  require_alike("weights", prefill.weights, decode.weights, "which is");
  require_alike("expert_weights", prefill.expert_weights.value_or(prefill.weights),
                decode.expert_weights.value_or(decode.weights), "which is");
  require_alike("activations", prefill.activations, decode.activations, "which is");
  if (placed.transfer.layerwise && placed.prefill.placement.mesh.two_batch_overlap) {
    throw std::invalid_argument(
        "transfer.layerwise beside two_batch_overlap of prefill is simulated and not executed; "
        "expected one of them");
  }
}

// What steps by themselves may have and those of a service may not. `place` is "prefill.",
// "decode." or nothing.
void check_served_mesh(const Mesh& mesh, const std::string& place) {
  const auto refuse = [&](const std::string& found, const std::string& expected) {
    throw std::invalid_argument("found " + place + found +
                                " in a service, which is simulated and not executed, its steps by "
                                "themselves are; expected " +
                                expected +
                                ", or validate.serve=false, which executes the steps alone");
  };
  if (mesh.ffn_instances > 0) {
    refuse("ffn_instances " + std::to_string(mesh.ffn_instances), "ffn_instances 0");
  }
  if (mesh.num_micro_batches > 1) {
    refuse("num_micro_batches " + std::to_string(mesh.num_micro_batches), "num_micro_batches 1");
  }
}

void check_served_meshes(const Scenario& scenario) {
  if (!scenario.disaggregation) {
    at_key(scenario, "placement", [&] { check_served_mesh(scenario.mesh, ""); });
    return;
  }
  const Disaggregation& placed = *scenario.disaggregation;
  at_key(scenario, "disaggregation", [&] {
    check_served_mesh(placed.prefill.placement.mesh, std::string(kPrefillSide) + ".");
    check_served_mesh(placed.decode.placement.mesh, std::string(kDecodeSide) + ".");
  });
}

void check_served_caches(const Scenario& scenario) {
  at_key(scenario, "kv_cache", [&] {
    if (const auto refusal = tiers_refusal(scenario.kv_tiers, scenario.mesh)) {
      throw std::invalid_argument(*refusal + ": set validate.serve=false to leave it out");
    }
    if (!scenario.kv_tiers.tiers.empty() && scenario.disaggregation) {
      throw std::invalid_argument(
          "found a tier of KV blocks behind prefill and decode apart, which is simulated and not "
          "executed: leave kv_cache out, or set validate.serve=false");
    }
  });
  at_key(scenario, "engine", [&] {
    // Prompts that share nothing are computed whole either way.
    const bool is_apart = scenario.mesh.dp > 1 || scenario.disaggregation.has_value();
    if (scenario.engine.enable_prefix_caching && is_apart &&
        make_workload(scenario.workload, scenario.seed).hash_block_tokens > 0) {
      throw std::invalid_argument(
          "enable_prefix_caching is on, prompts of the workload share prefixes, and no cache of "
          "them is executed over data-parallel ranks or where prefill and decode are apart: turn "
          "it off, or set validate.serve=false");
    }
  });
}

void check_served_workload(const Scenario& scenario) {
  at_key(scenario, "autoscaling", [&] {
    if (scenario.autoscaling) {
      throw std::invalid_argument(
          "found autoscaling, which is simulated and not executed: leave it out, or set "
          "validate.serve=false");
    }
  });
  const auto* offline = std::get_if<OfflineWorkload>(&scenario.workload.source);
  at_key(scenario, "workload", [&] {
    if (!make_workload(scenario.workload, scenario.seed).turns.empty()) {
      throw std::invalid_argument(
          "found sessions, whose turns wait for answers, and which are simulated and not executed: "
          "set another workload, or validate.serve=false");
    }
    if (scenario.workload.drain_requests > 0) {
      throw std::invalid_argument(
          "drain_requests are left out of simulated figures alone: set workload.drain_requests=0, "
          "or validate.serve=false");
    }
    if (offline != nullptr && offline->is_static_batch) {
      throw std::invalid_argument(
          "a static batch is not replayed on GPUs: use offline, or set validate.serve=false");
    }
  });
}

// Whatever the steps are.
void check_settings(const Scenario& scenario) {
  at_key(scenario, "engine", [&] {
    if (scenario.speculative) {
      throw std::invalid_argument(
          "found speculative, which is simulated and not executed: leave it out");
    }
  });
  at_key(scenario, scenario.disaggregation ? "disaggregation" : "placement",
         [&] { check_ffns(scenario); });
  at_key(scenario, "moe", [&] {
    if (!scenario.moe.eplb && !scenario.expert_load.drift) return;
    throw std::invalid_argument(
        "experts that are placed anew (moe.eplb) and loads that drift (expert_load.drift) are "
        "simulated and not executed; expected neither");
  });
}

}  // namespace

void check_executed_steps(const Scenario& scenario, std::span<const ValidationStep> steps) {
  check_settings(scenario);
  check_kernels(scenario, steps);
}

void check_executable(const Scenario& scenario) {
  check_settings(scenario);
  if (scenario.disaggregation) {
    check_settings(prefill_side(scenario));
    at_key(scenario, "disaggregation", [&] { check_transfers(scenario); });
  } else {
    at_key(scenario, "placement", [&] {
      if (scenario.replicas == 1) return;
      throw std::invalid_argument("found " + std::to_string(scenario.replicas) +
                                  " replicas; one is executed: set placement.replicas=1");
    });
  }
  const ValidationSpec& spec = scenario.validation;
  if (spec.serve) {
    check_served_meshes(scenario);
    check_served_caches(scenario);
    check_served_workload(scenario);
  }
  check_executed_layers(scenario);
  if (!spec.serve && spec.steps.empty() && !spec.layers.empty()) return;
  const auto check_side = [&](const Scenario& side) {
    check_kernels(side, spec.steps.empty() ? usual_steps(side) : spec.steps);
  };
  if (!scenario.disaggregation) return check_side(scenario);
  check_side(decode_side(scenario));
  check_side(prefill_side(scenario));
}

}  // namespace orrery
