#pragma once

// Small deployments on the reference interpreter: a step is lowered for its batch, split over the
// mesh and run.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/execute/rank_batches.h"
#include "kernels/execute/reference/model.h"
#include "kernels/serve/rank_grid.h"
#include "sim/parallel/parallel.h"
#include "sim/parallel/rank_rows.h"
#include "tests/model/small_models.h"

namespace orrery::testing {

// Four layers, 8 query heads and 2 key heads of 8; the vocabulary does not divide.
inline ConfigFields tiny_llama_fields() {
  ConfigFields fields = small_llama_fields();
  fields["hidden_size"] = std::int64_t{64};
  fields["intermediate_size"] = std::int64_t{48};
  fields["vocab_size"] = std::int64_t{41};
  return fields;
}
inline ModelConfig tiny_llama() { return model_config("tiny", tiny_llama_fields()); }

// One dense layer, the others of experts with a shared one; queries and keys from latents.
inline ModelConfig tiny_deepseek(std::int64_t num_layers = 3) {
  ConfigFields fields = small_deepseek_fields();
  fields["hidden_size"] = std::int64_t{64};
  fields["vocab_size"] = std::int64_t{41};
  fields["num_hidden_layers"] = num_layers;
  fields["num_attention_heads"] = std::int64_t{4};
  fields["num_key_value_heads"] = std::int64_t{4};
  fields["intermediate_size"] = std::int64_t{48};
  fields["moe_intermediate_size"] = std::int64_t{16};
  fields["q_lora_rank"] = std::int64_t{12};
  fields["kv_lora_rank"] = std::int64_t{16};
  fields["qk_nope_head_dim"] = std::int64_t{6};
  fields["qk_rope_head_dim"] = std::int64_t{4};
  fields["v_head_dim"] = std::int64_t{6};
  fields["n_routed_experts"] = std::int64_t{8};
  fields["num_experts_per_tok"] = std::int64_t{2};
  return model_config("tiny", fields);
}

inline constexpr std::int32_t kBlockSize = 4;
inline constexpr std::int64_t kNumBlocks = 64;

// A sequence of `length` tokens from a fixed stream, in blocks of its own that do not follow each
// other: blocks i, i + 8, i + 16, ... of the cache for sequence i < 8.
struct TestSequence {
  int index = 0;
  std::vector<std::int32_t> tokens;

  TestSequence(int sequence, std::int64_t length, std::int32_t vocab = 41) : index(sequence) {
    for (std::int64_t i = 0; i < length; ++i) {
      tokens.push_back(
          static_cast<std::int32_t>((7 * i * i + 13 * i + std::int64_t{5} * sequence + 3) % vocab));
    }
  }
  // Tokens [first, last) as a chunk.
  [[nodiscard]] SequenceTokens chunk(std::int64_t first, std::int64_t last,
                                     bool produces_token = true) const {
    SequenceTokens chunk{.tokens = {tokens.begin() + first, tokens.begin() + last},
                         .context = first,
                         .produces_token = produces_token};
    for (std::int64_t i = 0; i * kBlockSize < last; ++i) {
      chunk.blocks.push_back(static_cast<std::int32_t>(index + 8 * i));
    }
    return chunk;
  }
};

struct Deployment {
  ModelConfig model = tiny_llama();
  LoweringOptions options;
  Mesh mesh;
  reference::Rounding rounding = reference::Rounding::kNone;
  std::vector<float> router_bias;  // Routing::bias
};

// How tokens of the model choose their experts.
inline Routing routing_of(const ModelConfig& model, std::vector<float> bias = {}) {
  return {.score = model.scoring_func == ScoringFunc::kSigmoid ? RoutingScore::kSigmoid
                                                               : RoutingScore::kSoftmax,
          .normalises = model.norm_topk_prob,
          .scale = model.routed_scaling_factor,
          .groups = model.n_group,
          .topk_groups = model.topk_group,
          .bias = std::move(bias)};
}

// Runs steps of a deployment one after another.
class ReferenceRuns {
 public:
  using Change = std::function<Plan(const Plan&)>;  // of each step's plan before it runs

  explicit ReferenceRuns(Deployment deployment, Change change = {})
      : deployment_(std::move(deployment)), change_(std::move(change)) {}

  reference::StepResult run(const StepInput& input) { return run(input, batch_of(input)); }
  // `batch` may have more decodes than the input has.
  reference::StepResult run(const StepInput& input, const Batch& batch) {
    const Plan split = plan_of(input, batch);
    if (!model_) {
      Routing routing = routing_of(deployment_.model, deployment_.router_bias);
      const std::vector<std::int64_t>& slots = deployment_.mesh.expert_of_slot;
      routing.expert_of_slot.assign(slots.begin(), slots.end());
      model_.emplace(reference::ModelSetup{.grid = grid_of(deployment_.mesh),
                                           .numbers = {.head_dim = deployment_.model.rotary_dim(),
                                                       .max_positions = 64,
                                                       .routing = std::move(routing)},
                                           .num_kv_blocks = kNumBlocks,
                                           .block_size = kBlockSize,
                                           .rounding = deployment_.rounding});
    }
    return model_->run(change_ ? change_(split) : split, input);
  }

 private:
  [[nodiscard]] Plan plan_of(const StepInput& input, const Batch& batch) const {
    const auto& [model, options, mesh, rounding, bias] = deployment_;
    if (mesh.dp_rows == DpRows::kOwn) return parallelize(lower(model, batch, options), mesh);
    Batch fullest = fullest_batch(input, mesh.dp);
    // Cached tokens of prompts, as of one chunk.
    for (int rank = 0; rank < mesh.dp && !fullest.prefill.empty(); ++rank) {
      std::int64_t cached = 0;
      for (const SequenceTokens& chunk : input.prefill) {
        if (chunk.dp_rank == rank) cached += chunk.context;
      }
      auto& context = fullest.prefill.back().context;
      context = std::max(context, cached);
    }
    return step_plan(model, alike_shape(fullest, mesh, num_tokens(batch)), options, mesh);
  }

  Deployment deployment_;
  Change change_;
  std::optional<reference::Model> model_;
};

// Ranks with rows of their own and one page table; routed experts over all of them, if any.
inline Mesh dealt_mesh(int cp, int ep = 1) {
  return {.cp = cp,
          .ep = ep,
          .cp_weights = CpWeights::kReplicated,
          .cp_decodes = CpDecodes::kDealt,
          .expert_comm = ep > 1 ? ExpertComm::kGraph : ExpertComm::kAllToAll};
}

// By shuffled experts, the sum of the residual fused with norms or not.
inline Deployment deployment_of(const ModelConfig& model, const Mesh& mesh,
                                bool fuses_residual = false) {
  Deployment deployment{.model = model, .mesh = mesh};
  deployment.options.moe_design = MoeDesign::kShuffling;
  deployment.options.fuse_residual_norm = fuses_residual;
  return deployment;
}

// Largest difference over the largest of `expected`.
inline double relative_difference(std::span<const double> found, std::span<const double> expected) {
  if (found.size() != expected.size()) return INFINITY;
  double largest = 0;
  double difference = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    difference = std::max(difference, std::abs(found[i] - expected[i]));
  }
  return difference / largest;
}

}  // namespace orrery::testing
