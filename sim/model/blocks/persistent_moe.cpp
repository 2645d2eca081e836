// A layer of routed experts as one kernel, fused_moe: router, experts and the sum of each token's.

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sim/model/blocks/moe.h"

namespace orrery {

namespace {

void check_shared_inside(const ModelConfig& model, const LoweringOptions& options) {
  if (!options.shared_inside) return;
  constexpr std::int64_t kMost = 4;  // kMostFusedShared
  const std::int64_t columns = model.shared_expert_intermediate_size;
  const std::int64_t each = model.moe_intermediate_size;
  const auto fail = [&](const std::string& what) {
    throw std::invalid_argument("moe shared_inside: " + what +
                                ", expected shared_inside false: the shared expert by itself");
  };
  if (columns == 0) fail("model \"" + model.name + "\" has no shared expert");
  if (columns % each != 0 || columns / each > kMost) {
    fail("the shared expert is " + std::to_string(columns) + " wide and routed ones " +
         std::to_string(each) + ", which is not 1 to " + std::to_string(kMost) + " of them");
  }
  if (model.has_shared_expert_gate) fail("the shared expert has a gate, which the kernel has not");
  const DType experts = options.precision.expert_weights.value_or(options.precision.weights);
  if (experts != options.precision.weights) {
    fail("its weights are " + std::string(to_text(options.precision.weights)) +
         " and those of routed experts " + std::string(to_text(experts)));
  }
}

}  // namespace

void check_persistent_moe(const ModelConfig& model, const LoweringOptions& options) {
  const auto fail = [](const std::string& what) {
    throw std::invalid_argument("moe design persistent: " + what);
  };
  if (options.moe_streams != 1 || options.fuse_scatter_add || options.fuse_gather) {
    fail(
        "it is one kernel, so it has no second stream and no gather or scatter-add of its own; "
        "expected streams 1, no fuse_scatter_add and no fuse_gather, or design shuffling");
  }
  const DType experts = options.precision.expert_weights.value_or(options.precision.weights);
  if (experts != DType::kBf16 && experts != DType::kFp8) {
    fail("expert weights are " + std::string(to_text(experts)) +
         ", expected bf16 or fp8 (scales by row), or design fused, which takes other formats");
  }
  if (options.precision.weights == DType::kFp8 && options.precision.activations != DType::kFp8) {
    fail("weights are fp8 with activations " + std::string(to_text(options.precision.activations)) +
         ", expected fp8, or bf16 weights with expert_weights fp8");
  }
  check_shared_inside(model, options);
  if (options.capacity_percent < 0) {
    fail("capacity_percent is " + std::to_string(options.capacity_percent) +
         ", expected more than 0, or 0: no token is dropped");
  }
  const std::string of = " of model \"" + model.name + "\" ";
  const std::string instead = ", which only designs shuffling and fused compute";
  if (model.router_bias && !model.has_correction_bias)
    fail("the router" + of + "has a bias" + instead);
  if (model.weighs_expert_inputs) fail("experts" + of + "weigh what they read" + instead);
  if (model.moe_bias) fail("experts" + of + "have biases, which only design fused computes");
  constexpr std::int64_t kMostExperts = 512;
  constexpr std::int64_t kMostTopk = 8;
  if (model.num_experts > kMostExperts || model.num_experts_per_tok > kMostTopk) {
    fail(std::to_string(model.num_experts_per_tok) + " of " + std::to_string(model.num_experts) +
         " experts, expected at most " + std::to_string(kMostTopk) + " of " +
         std::to_string(kMostExperts) + ", or design shuffling");
  }
}

namespace {

// Of the shared expert, as wide as so many routed ones: gate_up and down as lower_swiglu has them.
TensorViews shared_weights(Lowering& step, DType dtype) {
  const std::int64_t columns = step.model.shared_expert_intermediate_size;
  return {
      step.weight("shared.gate_up_proj.weight", dtype,
                  {halves("shared_ffn", columns), step.hidden_axis()}),
      step.weight("shared.down_proj.weight", dtype, {step.hidden_axis(), {"shared_ffn", columns}})};
}

}  // namespace

void lower_persistent_moe(Lowering& step, TensorId normed, TensorId output) {
  const ModelConfig& model = step.model;
  const bool is_inside = step.options.shared_inside;
  TensorId shared = -1;
  if (model.shared_expert_intermediate_size > 0 && !is_inside) {
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
  if (is_inside) {
    for (const TensorView& view : shared_weights(step, weights.dtype)) reads.push_back(view);
  }
  const std::int64_t num_shared =
      is_inside ? model.shared_expert_intermediate_size / model.moe_intermediate_size : 0;
  std::vector<DimRef> dims{{"tokens", step.step.tokens, axis::kTokens},
                           {"hidden", model.hidden_size, axis::kHidden},
                           {"ffn", model.moe_intermediate_size, axis::kExpertFfn},
                           {"experts_total", model.num_experts},
                           {"topk", model.num_experts_per_tok},
                           {"activation", 0},
                           {"experts", model.num_experts, axis::kExperts},
                           {"shared", num_shared}};
  const std::int64_t capacity = step.options.capacity_percent;
  if (capacity > 0) dims.push_back({"capacity_percent", capacity});
  step.kernel("experts", "fused_moe", weights.dtype, dims, std::move(reads),
              {scores, routed, faults});
  if (shared >= 0) add_shared_expert(step, routed, shared, output);
}

}  // namespace orrery
