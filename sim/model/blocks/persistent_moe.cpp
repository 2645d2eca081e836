// A layer of routed experts as one kernel, fused_moe: router, experts and the sum of each token's.

#include <stdexcept>
#include <string>
#include <utility>

#include "sim/model/blocks/moe.h"

namespace orrery {

void check_persistent_moe(const ModelConfig& model, const LoweringOptions& options) {
  const auto fail = [](const std::string& what) {
    throw std::invalid_argument("moe design persistent: " + what);
  };
  if (options.moe_streams != 1 || options.fuse_scatter_add) {
    fail(
        "it is one kernel, so it has no second stream and no scatter-add of its own; expected "
        "streams 1 and no fuse_scatter_add, or design shuffling");
  }
  const DType experts = options.precision.expert_weights.value_or(options.precision.weights);
  const DType activations = options.precision.activations;
  if ((experts != DType::kBf16 && experts != DType::kFp8) ||
      (experts == DType::kFp8 && activations != DType::kFp8)) {
    fail("expert weights are " + std::string(to_text(experts)) + " with activations " +
         std::string(to_text(activations)) +
         ", expected bf16 both or fp8 both (scales by row), or design fused, which takes other "
         "formats");
  }
  const std::string of = " of model \"" + model.name + "\" ";
  const std::string instead = ", which only designs shuffling and fused compute";
  if (model.router_bias && !model.has_correction_bias)
    fail("the router" + of + "has a bias" + instead);
  if (model.weighs_expert_inputs) fail("experts" + of + "weigh what they read" + instead);
  if (model.moe_bias) fail("experts" + of + "have biases, which only design fused computes");
  constexpr std::int64_t kMostExperts = 256;
  constexpr std::int64_t kMostTopk = 8;
  if (model.num_experts > kMostExperts || model.num_experts_per_tok > kMostTopk) {
    fail(std::to_string(model.num_experts_per_tok) + " of " + std::to_string(model.num_experts) +
         " experts, expected at most " + std::to_string(kMostTopk) + " of " +
         std::to_string(kMostExperts) + ", or design shuffling");
  }
}

void lower_persistent_moe(Lowering& step, TensorId normed, TensorId output) {
  const ModelConfig& model = step.model;
  TensorId shared = -1;
  if (model.shared_expert_intermediate_size > 0) {
    const TensorId input =
        step.quantized("shared.quant", {normed}, step.tokens(), step.hidden_axis()).front();
    shared = lower_shared_expert(step, normed, input);
  }
  const TensorId routed =
      shared >= 0 ? step.activation("routed_out", {step.tokens(), step.hidden_axis()}) : output;
  const AxisRef columns{"router", model.num_experts};
  const TensorRole role = TensorRole::kActivation;
  const TensorId scores = step.tensor("router", DType::kFp32, role, {step.tokens(), columns});
  const TensorId faults = step.tensor("router.faults", DType::kInt32, role, {{"one", 1}});
  const ExpertWeights weights = expert_weights(step);
  TensorViews reads{normed,
                    step.weight("router.weight", DType::kBf16, {columns, step.hidden_axis()}),
                    weights.gate_up, weights.down};
  if (model.has_correction_bias) {
    reads.push_back(step.weight("router.correction_bias", DType::kFp32, {columns}));
  }
  step.kernel("experts", "fused_moe", weights.dtype,
              {{"tokens", step.step.tokens, axis::kTokens},
               {"hidden", model.hidden_size, axis::kHidden},
               {"ffn", model.moe_intermediate_size, axis::kExpertFfn},
               {"experts_total", model.num_experts},
               {"topk", model.num_experts_per_tok},
               {"activation", 0},
               {"experts", model.num_experts, axis::kExperts}},
              std::move(reads), {scores, routed, faults});
  if (shared >= 0) add_shared_expert(step, routed, shared, output);
}

}  // namespace orrery
