#pragma once

// One question about serving a model, as a scenario file asks it. Defaults are the member
// initialisers here and in EngineConfig (sim/serve/serve.h), nowhere else.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/cost.h"
#include "sim/des/simulate.h"
#include "sim/machine/machine.h"
#include "sim/model/model.h"
#include "sim/parallel/parallel.h"
#include "sim/scenario/engine_profile.h"
#include "sim/scenario/machine_setting.h"
#include "sim/scenario/moe_spec.h"
#include "sim/scenario/placement.h"
#include "sim/scenario/reader.h"
#include "sim/scenario/speculative_spec.h"
#include "sim/scenario/validation_spec.h"
#include "sim/scenario/workload.h"
#include "sim/serve/router.h"
#include "sim/serve/serve.h"
#include "sim/units/units.h"

namespace orrery {

// Where names are looked up.
struct ProjectPaths {
  std::filesystem::path root;  // holds models/, topologies/, scenarios/, data/
  SharedTraceReader traces;    // of foreign ones; null: they are refused
};

// Of a disaggregated service the setting, the replicas and the mesh are those of the decode side;
// what the prefill side has of its own stands in `disaggregation`.
struct Scenario : MachineSetting {
  std::string name;  // the file's stem
  std::string question;

  std::string model;     // name, path or id on the hub
  std::string model_as;  // the model_type it is simulated as; empty: its own
  // Only the first N layers of it; none: all.
  std::optional<std::int64_t> num_layers;
  Precision precision;
  std::string precision_source;              // who chose the weights' format
  std::vector<std::string> precision_notes;  // what of the checkpoint's is not simulated as it is
  ExpertLoadSpec expert_load;
  MoeSpec moe;  // the engine profile's unless the scenario says otherwise
  int replicas = 1;
  Mesh mesh;
  std::optional<Disaggregation> disaggregation;
  std::optional<FfnSide> ffn;  // on a machine of their own
  std::string side;            // which of its sides this is (disaggregated_run.h); empty: the whole
  std::string profile = kDefaultProfile;
  EngineConfig engine;
  std::optional<SpeculativeSpec> speculative;
  KvTiersConfig kv_tiers;  // as the scenario says them
  RouterKind router = RouterKind::kRoundRobin;
  std::optional<AutoscalingConfig> autoscaling;  // `replicas` are those at the start
  WorkloadSpec workload;
  Slo slo;
  StepLevel step_level = StepLevel::kClosedForm;
  std::uint64_t seed = 1;
  int threads = 1;
  // The step that is simulated in detail: nothing given means the median decode step of the run.
  Batch chosen_step;
  ValidationSpec validation;

  // What the names above stand for.
  ModelConfig model_config;
  ConfigFields model_fields;  // of the config.json that model_config was read from
  ExpertLoad expert_shares;   // of a design other than fused; at the start, where it drifts
  ExpertDrift expert_drift;   // likewise; its seed is the scenario's

  // Where each top-level key stands, for errors that show only when the scenario runs.
  std::map<std::string, Location> where;
  ProjectPaths paths;
};

// That of the prefill side of a disaggregated scenario.
const MachineSetting& prefill_setting(const Scenario& scenario);
// That of FFNs, which may lie where attention does.
const MachineSetting& ffn_setting(const Scenario& scenario);

// Reads, checks and resolves a scenario file. `overrides` are "key.path=value" texts applied before
// reading. Throws ScenarioError.
Scenario load_scenario(const std::filesystem::path& file, const ProjectPaths& paths,
                       const std::vector<std::string>& overrides = {});

// The same of a tree. The stem of `file` names the scenario, and paths in it are relative to its
// directory; there need be no such file. `requests` are those of `workload: {requests: }` where the
// tree does not write them out.
Scenario read_scenario(const YamlNode& root, const std::filesystem::path& file,
                       const ProjectPaths& paths, SharedRequests requests = nullptr);

// The scenario with every default spelled out and every quantity with its unit; loading it again
// gives the same scenario. Requests in memory are written out, or where `requests_file` is named,
// as the trace in that file.
std::string to_yaml(const Scenario& scenario, const std::string& requests_file = {});

}  // namespace orrery
