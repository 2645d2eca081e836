#include "sim/serve/config_fields.h"

#include <array>
#include <type_traits>

#include "sim/units/text.h"

namespace orrery {
namespace {

template <auto kMember, typename Config>
Choice<Config> choice(std::span<const std::string_view> names) {
  return {.names = names,
          .get = [](const Config& config) { return static_cast<std::size_t>(config.*kMember); },
          .set =
              [](Config& config, std::size_t value) {
                using Enum = std::remove_reference_t<decltype(config.*kMember)>;
                config.*kMember = static_cast<Enum>(value);
              }};
}

template <typename Config>
std::string text_of(const ConfigField<Config>& field, const Config& config) {
  struct {
    const Config& config;
    std::string operator()(bool Config::* member) const {
      return config.*member ? "true" : "false";
    }
    std::string operator()(int Config::* member) const { return std::to_string(config.*member); }
    std::string operator()(std::int64_t Config::* member) const {
      return std::to_string(config.*member);
    }
    std::string operator()(double Config::* member) const { return format_number(config.*member); }
    std::string operator()(const Choice<Config>& member) const {
      return std::string(member.names[member.get(config)]);
    }
  } visitor{config};
  return std::visit(visitor, field.member);
}

}  // namespace

std::span<const ConfigField<Mesh>> mesh_fields() {
  static const auto fields = std::to_array<ConfigField<Mesh>>(
      {{"dp", &Mesh::dp},
       {"tp", &Mesh::tp},
       {"cp", &Mesh::cp},
       {"ep", &Mesh::ep},
       {"pp", &Mesh::pp},
       {"sp", &Mesh::sp},
       {"dp_rows", choice<&Mesh::dp_rows, Mesh>(kDpRowsNames)},
       {"cp_weights", choice<&Mesh::cp_weights, Mesh>(kCpWeightsNames)},
       {"cp_prefill", choice<&Mesh::cp_prefill, Mesh>(kCpPrefillNames)},
       {"cp_decodes", choice<&Mesh::cp_decodes, Mesh>(kCpDecodesNames)},
       {"num_micro_batches", &Mesh::num_micro_batches},
       {"ffn_instances", &Mesh::ffn_instances, {.least = 0}},
       {"ffn_tp", &Mesh::ffn_tp},
       {"ffn_schedule", choice<&Mesh::ffn_schedule, Mesh>(kFfnScheduleNames)},
       {"expert_comm", choice<&Mesh::expert_comm, Mesh>(kExpertCommNames)},
       {"split_shared_expert", &Mesh::split_shared_expert},
       {"shared_expert", choice<&Mesh::shared_expert, Mesh>(kSharedExpertNames)},
       {"attention_gather", choice<&Mesh::attention_gather, Mesh>(kAttentionGatherNames)},
       {"moe_gather", choice<&Mesh::moe_gather, Mesh>(kMoeGatherNames)},
       {"o_proj", choice<&Mesh::o_proj, Mesh>(kOProjectionNames)},
       {"lm_head", choice<&Mesh::lm_head, Mesh>(kLmHeadNames)},
       {"split_all_reduce", &Mesh::split_all_reduce},
       {"two_batch_overlap", &Mesh::two_batch_overlap},
       {"num_redundant_experts", &Mesh::num_redundant_experts, {.least = 0, .most = 10'000}}});
  return fields;
}

std::span<const ConfigField<EngineConfig>> engine_fields() {
  using Engine = EngineConfig;
  static const auto fields = std::to_array<ConfigField<Engine>>({
      {"max_num_seqs", &Engine::max_num_seqs},
      {"max_num_batched_tokens", &Engine::max_num_batched_tokens},
      {"block_size", &Engine::block_size},
      {"gpu_memory_utilization", &Engine::gpu_memory_utilization, {.least = 0, .most = 1}},
      {"memory_fraction",
       choice<&Engine::memory_fraction, Engine>(kMemoryFractionNames),
       {},
       false},
      {"enable_chunked_prefill", &Engine::enable_chunked_prefill},
      {"enable_prefix_caching", &Engine::enable_prefix_caching},
      {"scheduler_reserve_full_isl", &Engine::scheduler_reserve_full_isl},
      {"max_model_len", &Engine::max_model_len},
      {"async_scheduling", &Engine::async_scheduling, {}, false},
      {"scheduler_policy",
       choice<&Engine::scheduler_policy, Engine>(kSchedulerPolicyNames),
       {},
       false},
      {"kv_admission", choice<&Engine::kv_admission, Engine>(kKvAdmissionNames), {}, false},
      {"new_token_ratio", &Engine::new_token_ratio, {}, false},
      {"stream_interval", &Engine::stream_interval},
      {"batch_wait_timeout_iters", &Engine::batch_wait_timeout_iters, {.least = 0}},
      {"batch_wait_max_tokens_ratio",
       &Engine::batch_wait_max_tokens_ratio,
       {.least = 0, .most = 1}},
      {"max_prefill_tokens", &Engine::max_prefill_tokens, {.least = 0}},
      {"dp_router", choice<&Engine::dp_router, Engine>(kDpRouterNames)},
      {"dp_balance_timeout_iters", &Engine::dp_balance_timeout_iters, {.least = 0}},
      {"dp_balance_batching_wait_iters", &Engine::dp_balance_batching_wait_iters, {.least = 0}},
  });
  return fields;
}

std::string field_text(const ConfigField<Mesh>& field, const Mesh& mesh) {
  return text_of(field, mesh);
}
std::string field_text(const ConfigField<EngineConfig>& field, const EngineConfig& engine) {
  return text_of(field, engine);
}

}  // namespace orrery
