#include "sim/scenario/engine_part.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "sim/scenario/config_keys.h"
#include "sim/scenario/keys.h"
#include "sim/scenario/machine_file.h"
#include "sim/scenario/named_files.h"

namespace orrery {
namespace {

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
  if (engine.dp_balance_batching_wait_iters > 0 && engine.dp_balance_timeout_iters == 0) {
    reader.fail("dp_balance_batching_wait_iters",
                "found " + std::to_string(engine.dp_balance_batching_wait_iters) +
                    " without dp_balance_timeout_iters, with which alone prompts wait for each "
                    "other; expected dp_balance_timeout_iters of at least 1 beside it, or 0");
  }
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

}  // namespace

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

}  // namespace orrery
