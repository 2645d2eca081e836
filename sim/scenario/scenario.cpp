#include "sim/scenario/scenario.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "sim/scenario/autoscaling.h"
#include "sim/scenario/chosen_step.h"
#include "sim/scenario/config_keys.h"
#include "sim/scenario/costs.h"
#include "sim/scenario/experts.h"
#include "sim/scenario/keys.h"
#include "sim/scenario/kv_cache.h"
#include "sim/scenario/machine_file.h"
#include "sim/scenario/model_file.h"
#include "sim/scenario/named_files.h"
#include "sim/scenario/quantization.h"
#include "sim/scenario/set_paths.h"
#include "sim/serve/router.h"
#include "sim/units/nearest.h"
#include "sim/units/shown.h"
#include "sim/units/text.h"

namespace orrery {

namespace {

// The first `num_layers` of the model.
void cut_layers(const Reader& reader, std::int64_t num_layers, ModelFile& model) {
  const std::int64_t all = std::ssize(model.config.layers);
  if (num_layers < 1 || num_layers > all) {
    reader.fail("layers", "found " + std::to_string(num_layers) + "; expected 1 to " +
                              std::to_string(all) + ", those of " + model.config.name);
  }
  model.fields = with_num_layers(model.fields, num_layers);
  model.config = model_config(model.config.name, model.fields);
}

// What the scenario says; without model.weights in it, the checkpoint's own formats before that.
void read_precision(const Reader& reader, const ModelFile& model, Scenario& scenario) {
  Precision& precision = scenario.precision;
  const bool is_quantised = model.quantization.kind != YamlNode::Kind::kNull;
  if (reader.has("weights")) {
    scenario.precision_source = "scenario";
  } else if (!is_quantised) {
    scenario.precision_source = "default: " + scenario.model + " has no quantization_config";
  } else {
    CheckpointPrecision found = checkpoint_precision(model.quantization, scenario.model_config);
    precision = found.precision;
    scenario.precision_source = "checkpoint, " + model.quantization_source + " " + found.method;
    for (const std::string& note : found.notes) {
      scenario.precision_notes.push_back(model.quantization_source + " of " + scenario.model +
                                         ": " + note);
    }
  }
  const auto format = [&](std::string_view key, auto& dtype) {
    if (reader.has(key)) {
      dtype = reader.convert(key, parse_dtype);
    }
  };
  format("weights", precision.weights);
  format("expert_weights", precision.expert_weights);
  format("activations", precision.activations);
  format("kv_cache", precision.kv_cache);
  format("lm_head", precision.lm_head);
}

// model: NAME, or {config: NAME, weights: fp8, ...}.
void read_model_part(const YamlNode& node, const std::filesystem::path& directory,
                     Scenario& scenario) {
  if (node.kind == YamlNode::Kind::kScalar) {
    YamlNode named = node;
    make_mapping(named, "config");
    return read_model_part(named, directory, scenario);
  }
  const Reader reader(node, "model", key_names("model"));
  scenario.model = reader.text("config");
  const std::filesystem::path file = reader.convert("config", [&](std::string_view name) {
    return find_model(std::string(name), directory, scenario.paths.root);
  });
  if (reader.has("as")) {
    const std::vector<std::string> types = known_model_types();
    const std::vector<std::string_view> known(types.begin(), types.end());
    scenario.model_as = types[reader.choice("as", known)];
  }
  ModelFile model = read_model_file(file, scenario.model_as);
  if (reader.has("layers")) {
    scenario.num_layers = reader.integer("layers");
    cut_layers(reader, *scenario.num_layers, model);
  }
  scenario.model_config = std::move(model.config);
  scenario.model_fields = std::move(model.fields);
  read_precision(reader, model, scenario);
  if (reader.has("expert_load")) {
    scenario.expert_load = read_expert_load(reader, "expert_load");
  }
}

// `scenario` has the decode side's setting.
Disaggregation read_sides(const Reader& root, const std::filesystem::path& directory,
                          const Scenario& scenario) {
  std::optional<MachineSetting> prefill;
  if (has_own_setting(root.node())) {
    prefill = read_machine_setting(root, kPrefillSide, directory, scenario.paths.root);
  }
  const MachineSpec& decode = scenario.machine_spec;
  const SideMachines machines{.prefill = prefill ? &prefill->machine_spec : &decode,
                              .decode = &decode,
                              .are_two = has_two_machines(root.node())};
  Disaggregation found = read_disaggregation(root.at("disaggregation"), scenario.model_config,
                                             scenario.precision.kv_cache, machines);
  found.prefill_setting = std::move(prefill);
  return found;
}

// `placement`, or `disaggregation` in its place.
void read_place(const Reader& root, const std::filesystem::path& directory, Scenario& scenario) {
  Placement placement;
  if (root.has("disaggregation")) {
    if (root.has("placement")) {
      root.fail("placement", "found placement beside disaggregation; expected one of them");
    }
    scenario.disaggregation = read_sides(root, directory, scenario);
    placement = scenario.disaggregation->decode.placement;
  } else if (root.has("placement")) {
    const YamlNode& node = root.at("placement");
    placement = read_placement(node, scenario.model_config, scenario.machine_spec);
    if (node.find(kFfnSide) != nullptr) {
      scenario.ffn =
          read_ffn_side(node, placement, scenario.machine_spec,
                        read_machine_setting(root, kFfnSide, directory, scenario.paths.root));
    }
  }
  scenario.replicas = placement.replicas;
  scenario.mesh = placement.mesh;
}

void read_scaling(const Reader& root, Scenario& scenario) {
  if (!root.has("autoscaling")) return;
  const YamlNode& node = root.at("autoscaling");
  if (scenario.disaggregation) {
    root.fail("autoscaling",
              "found autoscaling beside disaggregation, whose sides are of a fixed size; expected "
              "placement in its place");
  }
  if (scenario.ffn) {
    root.fail(
        "autoscaling",
        "found autoscaling beside placement.ffn, whose machine has a fixed size; expected one "
        "of them");
  }
  scenario.autoscaling = read_autoscaling(node);
  AutoscalingConfig& scaling = *scenario.autoscaling;
  const YamlNode* placement = root.node().find("placement");
  if (placement == nullptr || placement->find("replicas") == nullptr) {
    scenario.replicas = scaling.min_replicas;
  }
  if (scenario.replicas < scaling.min_replicas || scenario.replicas > scaling.max_replicas) {
    fail_at(node.where, "autoscaling: found placement.replicas " +
                            std::to_string(scenario.replicas) +
                            ", those at the start; expected from min_replicas, " +
                            std::to_string(scaling.min_replicas) + ", to max_replicas, " +
                            std::to_string(scaling.max_replicas));
  }
  const std::int64_t gpus = std::int64_t{scaling.max_replicas} * num_ranks(scenario.mesh);
  if (gpus > scenario.machine_spec.num_gpus) {
    fail_at(node.where, "autoscaling: max_replicas needs " + std::to_string(gpus) + " GPUs (" +
                            std::to_string(scaling.max_replicas) + " replicas of " +
                            std::to_string(num_ranks(scenario.mesh)) + "); machine " +
                            scenario.machine_spec.name + " has " +
                            std::to_string(scenario.machine_spec.num_gpus));
  }
  for (const std::string_view key : {"offline", "static_batch"}) {
    if (root.at("workload").find(key) != nullptr) {
      root.fail("autoscaling", "found autoscaling beside " + std::string(key) +
                                   ", whose requests all wait from the start; expected a trace, "
                                   "poisson, gamma, closed_loop or sessions");
    }
  }
  if (root.has("kv_cache")) {
    root.fail("autoscaling",
              "found autoscaling beside tiers of KV blocks (kv_cache), which leave with their "
              "replicas; expected one of them");
  }
}

// Routers that need what the workload or the engine does not have.
void check_router(const Reader& root, const Scenario& scenario) {
  const RouterPolicy& router = router_policy(scenario.router);
  const auto* trace = std::get_if<TraceWorkload>(&scenario.workload.source);
  const bool may_have_sessions = std::holds_alternative<SessionConfig>(scenario.workload.source) ||
                                 (trace != nullptr && trace->format == TraceFormat::kForeign);
  if (router.needs_sessions && !may_have_sessions) {
    root.fail("router", "found " + std::string(router.name) +
                            ", which keeps the turns of a session together, beside requests of "
                            "none; expected workload.sessions, a trace with sessions, or another "
                            "router such as least_loaded");
  }
}

// What a disaggregated service cannot serve.
void check_disaggregated(const Reader& root, const Scenario& scenario) {
  if (!scenario.disaggregation) {
    return;
  }
  for (const SidePlacement* side :
       {&scenario.disaggregation->prefill, &scenario.disaggregation->decode}) {
    const EngineConfig engine = engine_of(*side, scenario.engine);
    if (engine.max_num_batched_tokens < engine.max_num_seqs) {
      root.fail("disaggregation",
                std::string(side == &scenario.disaggregation->prefill ? "prefill" : "decode") +
                    ": max_num_batched_tokens is " + std::to_string(engine.max_num_batched_tokens) +
                    "; expected at least max_num_seqs, " + std::to_string(engine.max_num_seqs));
    }
  }
  for (const std::string_view key : {"offline", "static_batch"}) {
    if (root.at("workload").find(key) != nullptr) {
      root.fail("workload", "found " + std::string(key) +
                                " beside disaggregation, which serves requests as they come; "
                                "expected a trace, poisson, gamma, closed_loop or sessions");
    }
  }
}

std::string graphs_yaml(const EngineProfile& profile) {
  std::string sizes;
  for (const std::int64_t size : profile.graph_batch_sizes) {
    sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  }
  const std::string mode =
      profile.launch_mode == LaunchMode::kMegakernel
          ? "  launch_mode: " + std::string(to_text(profile.launch_mode)) + "\n"
          : "";
  return mode + "  graph_batch_sizes: [" + sizes + "]\n  cuda_graphs: " +
         std::string(kCudaGraphsNames[static_cast<std::size_t>(profile.cuda_graphs)]) +
         "\n  max_piece_tokens: " + std::to_string(profile.max_piece_tokens) + "\n";
}

// The profile's, as the engine changes them for the GPU and the model.
EngineConfig default_engine(const Scenario& scenario, bool is_offline) {
  EngineConfig engine = scenario.engine_profile.engine;
  std::int64_t offline_tokens = scenario.engine_profile.offline_max_num_batched_tokens;
  const Device& device = scenario.machine_spec.device;
  if (const auto& small = scenario.engine_profile.small_gpu;
      small && (device.hbm_capacity < small->below || device.architecture == small->architecture)) {
    engine.max_num_seqs = small->max_num_seqs;
    engine.max_num_batched_tokens = small->max_num_batched_tokens;
    offline_tokens = small->offline_max_num_batched_tokens;
  }
  if (is_offline && offline_tokens > 0) engine.max_num_batched_tokens = offline_tokens;
  // Of a prefix whose layers keep a state, the state at its end would have to be kept as well; vLLM
  // leaves it off (vllm/config/model.py, is_prefix_caching_supported).
  if (std::ranges::any_of(scenario.model_config.layers,
                          [](const LayerConfig& layer) { return layer.state_bytes > 0; })) {
    engine.enable_prefix_caching = false;
  }
  return engine;
}

// Tokens of a decoding sequence in a step.
std::int64_t decode_query(const Scenario& scenario) {
  return 1 + (scenario.speculative ? scenario.speculative->num_tokens : 0);
}

// A default number of sequences gives way to a token budget that is stated, as in vLLM
// (vllm/engine/arg_utils.py); of prefill and decode apart, side by side.
void limit_seats(Scenario& scenario) {
  EngineConfig& engine = scenario.engine;
  engine.max_num_seqs =
      std::min(engine.max_num_seqs, engine.max_num_batched_tokens / decode_query(scenario));
  if (!scenario.disaggregation) return;
  for (SidePlacement* side :
       {&scenario.disaggregation->prefill, &scenario.disaggregation->decode}) {
    const std::int64_t budget = side->max_num_batched_tokens.value_or(engine.max_num_seqs);
    if (!side->max_num_seqs && budget < engine.max_num_seqs) side->max_num_seqs = budget;
  }
}

void read_speculative_part(const Reader& engine, const std::filesystem::path& directory,
                           Scenario& scenario) {
  if (scenario.disaggregation) {
    engine.fail("speculative",
                "found speculative beside disaggregation, whose transfers would have to move the "
                "draft's KV cache too; expected placement");
  }
  if (scenario.ffn) {
    engine.fail("speculative",
                "found speculative beside placement.ffn, whose drafts would need places on both "
                "machines; expected FFNs on the machine of attention");
  }
  scenario.speculative = read_speculative(
      engine.at("speculative"),
      {.model = scenario.model_config, .precision = scenario.precision, .mesh = scenario.mesh},
      directory, scenario.paths.root);
}

void read_engine(const YamlNode* node, const YamlNode& root, const std::filesystem::path& directory,
                 Scenario& scenario) {
  YamlNode empty;
  empty.kind = YamlNode::Kind::kMap;
  empty.where = root.where;
  const Reader reader(node == nullptr ? empty : *node, "engine", key_names("engine"));
  if (reader.has("profile")) {
    scenario.profile = reader.text("profile");
  }
  const std::filesystem::path profiles = scenario.paths.root / "scenarios" / "engines";
  std::filesystem::path file = profiles / (scenario.profile + ".yaml");
  std::filesystem::path of_device;
  if (is_path(scenario.profile)) {
    file = required_file(reader, "profile", scenario.profile, directory, scenario.paths.root);
  } else if (std::filesystem::exists(file)) {
    of_device = scenario.paths.root / "topologies" / "devices" / scenario.machine_spec.device.name /
                ("engine." + scenario.profile + ".yaml");
  } else {
    reader.fail("profile",
                unknown_name("engine profile", scenario.profile, machine_names(profiles)));
  }
  scenario.engine_profile = read_engine_profile(file, of_device, profiles);

  const YamlNode* workload = root.find("workload");
  scenario.engine =
      default_engine(scenario, workload != nullptr && workload->find("offline") != nullptr);
  EngineConfig& engine = scenario.engine;
  read_config(reader, engine_fields(), engine);
  read_graphs(reader, scenario.engine_profile);
  if (reader.has("speculative")) read_speculative_part(reader, directory, scenario);
  if (!reader.has("max_num_seqs")) limit_seats(scenario);
  if (const std::int64_t query = decode_query(scenario);
      query > 1 && engine.max_num_batched_tokens < engine.max_num_seqs * query) {
    reader.fail("speculative",
                "found max_num_batched_tokens " + std::to_string(engine.max_num_batched_tokens) +
                    " and max_num_seqs " + std::to_string(engine.max_num_seqs) +
                    ", each of which verifies " + std::to_string(query) +
                    " tokens in a step; expected at least " +
                    std::to_string(engine.max_num_seqs * query) + " tokens, or at most " +
                    std::to_string(engine.max_num_batched_tokens / query) + " sequences");
  }
  if (engine.max_num_batched_tokens < engine.max_num_seqs) {
    const bool has_budget = reader.has("max_num_batched_tokens") || !reader.has("max_num_seqs");
    const std::string tokens = std::to_string(engine.max_num_batched_tokens);
    const std::string seqs = std::to_string(engine.max_num_seqs);
    reader.fail(has_budget ? "max_num_batched_tokens" : "max_num_seqs",
                has_budget
                    ? "found " + tokens + "; expected at least max_num_seqs, " + seqs
                    : "found " + seqs + "; expected at most max_num_batched_tokens, " + tokens);
  }
  if (engine.max_model_len == 0) {
    engine.max_model_len = scenario.model_config.max_position_embeddings;
  }
}

// That of each side's device. `engine` limits both sides; without a limit there each side has the
// default on its own device, which is written down as a limit of prefill where it is another.
void read_engines(const YamlNode* node, const YamlNode& root,
                  const std::filesystem::path& directory, Scenario& scenario) {
  if (scenario.ffn) {
    Scenario there = scenario;
    static_cast<MachineSetting&>(there) = scenario.ffn->setting;
    read_engine(node, root, directory, there);
    scenario.ffn->setting.engine_profile = there.engine_profile;
  }
  if (!scenario.disaggregation || !scenario.disaggregation->prefill_setting) {
    return read_engine(node, root, directory, scenario);
  }
  Scenario there = scenario;
  static_cast<MachineSetting&>(there) = *scenario.disaggregation->prefill_setting;
  read_engine(node, root, directory, there);
  read_engine(node, root, directory, scenario);
  scenario.disaggregation->prefill_setting->engine_profile = there.engine_profile;
  SidePlacement& side = scenario.disaggregation->prefill;
  side = there.disaggregation->prefill;
  const EngineConfig own = engine_of(side, there.engine);
  const EngineConfig shared = engine_of(side, scenario.engine);
  if (own.max_num_seqs != shared.max_num_seqs) side.max_num_seqs = own.max_num_seqs;
  if (own.max_num_batched_tokens != shared.max_num_batched_tokens) {
    side.max_num_batched_tokens = own.max_num_batched_tokens;
  }
}

// A machine of the scenario's that neither side has its GPUs from.
void note_unused_machine(const Reader& root, Scenario& scenario) {
  if (!root.has("machine") || !side_has(root.node(), kPrefillSide) ||
      !side_has(root.node(), kDecodeSide)) {
    return;
  }
  const YamlNode& node = root.at("machine");
  const YamlNode* name = node.kind == YamlNode::Kind::kMap ? node.find("name") : &node;
  Disaggregation& placed = *scenario.disaggregation;
  if (name != nullptr && name->scalar != scenario.machine &&
      name->scalar != placed.prefill_setting->machine) {
    placed.unused_machine = name->scalar;
  }
}

// ttft: 1 s limits each request; ttft: {p99: 1 s, mean: 300 ms, each: 2 s} statistics of all, too.
void read_limits(const Reader& reader, LatencyMetric metric, Seconds& each, Slo& slo) {
  const std::string_view key = kLatencyMetricNames[static_cast<std::size_t>(metric)];
  const YamlNode& node = reader.at(key);
  if (node.kind != YamlNode::Kind::kMap) {
    each = reader.seconds(key);
    return;
  }
  std::vector<std::string_view> keys;
  keys.reserve(node.entries.size());
  for (const YamlNode::Entry& entry : node.entries) keys.emplace_back(entry.key);
  const Reader limits(node, reader.path_of(key), keys);
  for (const YamlNode::Entry& entry : node.entries) {
    if (entry.key == "each") {
      each = limits.seconds("each");
      continue;
    }
    try {
      slo.limits.push_back({.metric = metric,
                            .percentile = parse_statistic(entry.key),
                            .limit = limits.seconds(entry.key)});
    } catch (const ScenarioError&) {
      throw;
    } catch (const std::invalid_argument& error) {
      fail_at(entry.where, reader.path_of(key) + ": " + error.what() + ", or each");
    }
  }
}

void read_slo(const YamlNode& node, Slo& slo) {
  const Reader reader(node, "slo", key_names("slo"));
  const auto limits = [&](LatencyMetric metric, Seconds& each) {
    if (reader.has(kLatencyMetricNames[static_cast<std::size_t>(metric)])) {
      read_limits(reader, metric, each, slo);
    }
  };
  limits(LatencyMetric::kTtft, slo.ttft);
  limits(LatencyMetric::kTpot, slo.tpot);
  limits(LatencyMetric::kE2e, slo.e2e);
  if (reader.has("attainment")) slo.attainment = reader.number("attainment", 0, 1, /*above=*/true);
  if (reader.has("goodput")) slo.goodput = reader.number("goodput", 0, 1e9, /*above=*/true);
  for (const std::string_view key : {"attainment", "goodput"}) {
    if (reader.has(key) && !slo.limits_each()) {
      reader.fail(key, std::string(key) +
                           " counts requests that meet limits of each request; found none, "
                           "expected such as ttft: 1 s beside it");
    }
  }
}

std::string seconds_yaml(Seconds value) { return format_number(value.value()) + " s"; }

// With its key; empty where nothing is asked.
std::string slo_yaml(const Slo& slo) {
  if (slo.is_empty()) return "";
  const Slo none;
  std::string text;
  const auto limits = [&](LatencyMetric metric, Seconds each, Seconds absent) {
    const std::string key(kLatencyMetricNames[static_cast<std::size_t>(metric)]);
    std::string statistics;
    for (const LatencyLimit& limit : slo.limits) {
      if (limit.metric == metric) {
        statistics += (statistics.empty() ? "" : ", ") + statistic_name(limit.percentile) + ": " +
                      seconds_yaml(limit.limit);
      }
    }
    if (!statistics.empty()) {
      const std::string of_each = each < absent ? "each: " + seconds_yaml(each) + ", " : "";
      text += "\n  " + key + ": {" + of_each + statistics + "}";
    } else if (each < absent) {
      text += "\n  " + key + ": " + seconds_yaml(each);
    }
  };
  limits(LatencyMetric::kTtft, slo.ttft, none.ttft);
  limits(LatencyMetric::kTpot, slo.tpot, none.tpot);
  limits(LatencyMetric::kE2e, slo.e2e, none.e2e);
  if (slo.attainment != none.attainment) {
    text += "\n  attainment: " + format_number(slo.attainment);
  }
  if (slo.goodput > 0) text += "\n  goodput: " + format_number(slo.goodput);
  return "slo:" + text + "\n";
}

}  // namespace

const MachineSetting& ffn_setting(const Scenario& scenario) {
  return scenario.ffn ? scenario.ffn->setting : scenario;
}

const MachineSetting& prefill_setting(const Scenario& scenario) {
  const auto& own = scenario.disaggregation->prefill_setting;
  return own ? *own : scenario;
}

Scenario load_scenario(const std::filesystem::path& file, const ProjectPaths& paths,
                       const std::vector<std::string>& overrides) {
  YamlNode root = read_yaml(file);
  for (const std::string& assignment : overrides) {
    set_value(root, assignment);
  }
  return read_scenario(root, file, paths);
}

Scenario read_scenario(const YamlNode& given, const std::filesystem::path& file,
                       const ProjectPaths& paths, SharedRequests requests) {
  const std::filesystem::path directory = std::filesystem::absolute(file).parent_path();
  const auto with_paths = with_set_paths(given, directory, std::filesystem::current_path());
  const YamlNode& root_node = with_paths ? *with_paths : given;
  check_keys(root_node, kScenarioSection);
  const Reader root(root_node, "", key_names(kScenarioSection));
  if (side_has(root_node, kPrefillSide) && side_has(root_node, kDecodeSide)) {
    root.require({"model", "workload"});
  } else {
    root.require({"model", "machine", "workload"});
  }
  Scenario scenario;
  scenario.paths = paths;
  scenario.name = file.stem().string();
  for (const YamlNode::Entry& entry : root_node.entries) {
    scenario.where[entry.key] = entry.where;
  }
  scenario.where[""] = {root_node.where.file, 0, 0};
  if (root.has("question")) {
    scenario.question = root.text("question");
  }
  read_model_part(root.at("model"), directory, scenario);
  static_cast<MachineSetting&>(scenario) =
      read_machine_setting(root, kDecodeSide, directory, paths.root);
  read_place(root, directory, scenario);
  read_engines(root_node.find("engine"), root_node, directory, scenario);
  note_unused_machine(root, scenario);
  read_experts(root, directory, scenario);
  if (root.has("kv_cache")) {
    scenario.kv_tiers = read_kv_cache(root.at("kv_cache"));
    if (!scenario.kv_tiers.tiers.empty() && !scenario.engine.enable_prefix_caching) {
      root.fail("kv_cache",
                "found tiers beside engine.enable_prefix_caching: false, without which "
                "no block is found again; expected true");
    }
  }
  if (root.has("router")) {
    scenario.router = router_policies()[root.choice("router", router_names())].kind;
  }
  scenario.workload =
      read_workload(root.at("workload"), directory, paths.root, std::move(requests), paths.traces);
  check_disaggregated(root, scenario);
  read_scaling(root, scenario);
  check_router(root, scenario);
  if (root.has("slo")) {
    read_slo(root.at("slo"), scenario.slo);
  }
  if (root.has("step_level")) {
    scenario.step_level = root.convert("step_level", parse_step_level);
  }
  if (root.has("chosen_step")) {
    scenario.chosen_step = read_chosen_step(root);
  }
  if (root.has("validate")) {
    scenario.validation = read_validation(root.at("validate"));
  }
  if (root.has("seed")) {
    scenario.seed = static_cast<std::uint64_t>(root.integer("seed", 0));
  }
  return scenario;
}

std::string to_yaml(const Scenario& scenario, const std::string& requests_file) {
  const Precision& precision = scenario.precision;
  const auto number = [](std::int64_t value) { return std::to_string(value); };
  std::string text;
  text += "question: " + quoted_yaml(scenario.question) + "\n";
  text += "model:\n  config: " + quoted_yaml(scenario.model) +
          (scenario.model_as.empty() ? "" : "\n  as: " + quoted_yaml(scenario.model_as)) +
          (scenario.num_layers ? "\n  layers: " + number(*scenario.num_layers) : std::string()) +
          "\n  weights: " + std::string(to_text(precision.weights)) +
          (precision.expert_weights
               ? "\n  expert_weights: " + std::string(to_text(*precision.expert_weights))
               : std::string()) +
          "\n  activations: " + std::string(to_text(precision.activations)) +
          "\n  kv_cache: " + std::string(to_text(precision.kv_cache)) +
          "\n  lm_head: " + std::string(to_text(precision.lm_head)) +
          "\n  expert_load: " + to_yaml(scenario.expert_load) + "\nmoe: " + to_yaml(scenario.moe) +
          "\n";
  text += machine_yaml(scenario, "") + "\n" + provider_yaml(scenario, "") + "\n";
  text +=
      scenario.disaggregation
          ? to_yaml(*scenario.disaggregation, scenario)
          : to_yaml(Placement{.replicas = scenario.replicas, .mesh = scenario.mesh}, scenario.ffn);
  if (scenario.autoscaling) text += to_yaml(*scenario.autoscaling);
  text += "engine:\n  profile: " + quoted_yaml(scenario.profile) +
          config_yaml(engine_fields(), scenario.engine, "  ") + "\n" +
          graphs_yaml(scenario.engine_profile);
  if (scenario.speculative) text += to_yaml(*scenario.speculative);
  text += to_yaml(scenario.kv_tiers);
  text += "router: " + std::string(to_text(scenario.router)) + "\n";
  text += "workload: " + to_yaml(scenario.workload, scenario.paths.root, requests_file) + "\n";
  // The scenario's would be that of sides whose machines say none, too.
  const bool is_cost_of_sides =
      (scenario.disaggregation && scenario.disaggregation->prefill_setting) ||
      (scenario.ffn && scenario.ffn->setting.machine_spec.costs.usd_per_gpu_hour == 0);
  text += slo_yaml(scenario.slo);
  if (!is_cost_of_sides) text += to_yaml(scenario.machine_spec.costs);
  text += "step_level: " + std::string(to_text(scenario.step_level)) + "\n";
  text += "chosen_step: " + chosen_step_yaml(scenario.chosen_step) + "\n";
  text += "validate: " + to_yaml(scenario.validation) + "\n";
  text += "seed: " + std::to_string(scenario.seed) + "\n";
  return text;
}

}  // namespace orrery
