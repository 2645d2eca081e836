// Routed experts as ops of their own, in four designs that compute the same.
//
//   shuffling      router shuffle           gather          gate_up act down  scatter
//   padding        router shuffle           gather, padded  gate_up act down  scatter
//   slicing        router shuffle | sync |  gather          gate_up.e act down.e  scatter
//   concatenation  router shuffle | sync |  gather.e        gate_up act down  scatter
//
// Rows are sorted by expert, so an expert's rows lie together. Every choice of a token is a row:
// tensors of rows have room for all, dims say how many are expected. The shared expert's result is
// what the scatter adds to; it runs on stream 1 when there are two. Two fusions are choices of
// their own: gather and gate_up in one op, which needs nothing of the shared expert, and down and
// scatter, which adds in place and so comes after it.

#include <array>
#include <stdexcept>
#include <string>
#include <utility>

#include "sim/model/blocks/moe.h"
#include "sim/units/nearest.h"

namespace orrery {
namespace {

void check_own_design(const ModelConfig& model, const LoweringOptions& options) {
  const std::string design(to_text(options.moe_design));
  const bool has_shared = model.shared_expert_intermediate_size > 0;
  const auto fail = [&](const std::string& what) {
    throw std::invalid_argument("moe design " + design + ": " + what);
  };
  if (options.moe_streams != 1 && options.moe_streams != 2) {
    fail("streams is " + std::to_string(options.moe_streams) +
         ", expected 1 or 2: the second is for the shared expert");
  }
  if (options.fuse_scatter_add && options.moe_design != MoeDesign::kShuffling &&
      options.moe_design != MoeDesign::kConcatenation) {
    fail("fuse_scatter_add needs a grouped gemm, expected design shuffling or concatenation");
  }
  if (options.fuse_scatter_add && !has_shared) {
    fail("fuse_scatter_add needs a shared expert; model \"" + model.name + "\" has none");
  }
  if (options.fuse_gather && options.moe_design != MoeDesign::kShuffling) {
    fail(
        "fuse_gather needs a grouped gemm of rows that one op would gather, expected design "
        "shuffling, or no fuse_gather");
  }
  if (model.has_shared_expert_gate) {
    fail("the shared expert of model \"" + model.name +
         "\" has a gate, which only design fused computes");
  }
  if (model.moe_bias) {
    fail("the experts of model \"" + model.name +
         "\" have biases, which only design fused computes");
  }
  const Precision& precision = options.precision;
  const DType experts = precision.expert_weights.value_or(precision.weights);
  if (experts != DType::kBf16 && experts != DType::kFp8) {
    fail("expert weights are " + std::string(to_text(experts)) +
         ", expected bf16 or fp8 (scales by row); design fused takes other formats");
  }
  if (options.fuse_gather && experts == DType::kFp8) {
    fail(
        "fuse_gather with expert weights fp8, whose rows are narrowed as they are gathered; "
        "expected expert weights bf16, or no fuse_gather");
  }
  if (experts == DType::kFp8 && precision.weights == DType::kFp8 &&
      precision.activations != DType::kFp8) {
    fail("weights are fp8 with activations " + std::string(to_text(precision.activations)) +
         ", expected fp8, or bf16 weights with expert_weights fp8");
  }
}

class DesignLowering {
 public:
  DesignLowering(Lowering& step, TensorId normed, TensorId output)
      : step_(step),
        model_(step.model),
        design_(step.options.moe_design),
        normed_(normed),
        output_(output),
        tokens_(step.step.tokens),
        rows_(tokens_ * model_.num_experts_per_tok),
        dims_(expected_dims(step.options.expert_load, model_.num_experts,
                            model_.num_experts_per_tok, tokens_ - step_.step.padding, 0,
                            model_.num_experts)) {}

  void run(bool imposes_scores) {
    route(imposes_scores);
    // The sync waits for its stream: on one stream for the shuffle alone, so that the GPU goes on
    // with the shared expert while the host launches what needs the counts.
    const bool has_two_streams = step_.options.moe_streams == 2;
    if (has_two_streams) lower_shared();
    if (syncs()) step_.host("sync", HostKind::kD2hSync, {counts_});
    if (!has_two_streams) lower_shared();
    weights_ = expert_weights(step_);
    const AxisRef both = halves(axis::kExpertFfn, model_.moe_intermediate_size);
    const TensorId gate_up =
        step_.options.fuse_gather
            ? gather_and_multiply(both)
            : multiply("experts.gate_up", gather(), weights_.gate_up, both, step_.hidden_axis());
    const TensorId activated = activate(gate_up);
    const AxisRef columns{axis::kExpertFfn, model_.moe_intermediate_size};
    if (step_.options.fuse_scatter_add) {
      multiply_and_scatter(activated, columns);
    } else {
      scatter(multiply("experts.down", activated, weights_.down, step_.hidden_axis(), columns));
    }
  }

 private:
  [[nodiscard]] bool pads() const { return design_ == MoeDesign::kPadding; }
  [[nodiscard]] bool syncs() const {
    return design_ == MoeDesign::kSlicing || design_ == MoeDesign::kConcatenation;
  }
  [[nodiscard]] AxisRef experts() const { return {axis::kExperts, model_.num_experts}; }
  [[nodiscard]] AxisRef row_axis() const { return {axis::kRoutedRows, rows_}; }
  // Rows that are computed, and those among them that tokens chose.
  [[nodiscard]] DimRef computed_rows(std::string_view name) const {
    return {name, pads() ? model_.num_experts * tokens_ : dims_.rows, axis::kRoutedRows};
  }
  [[nodiscard]] DimRef chosen_rows() const { return {"rows", dims_.rows, axis::kRoutedRows}; }

  // Of all rows, [experts, capacity, width] where each expert has room for every token.
  TensorId row_tensor(std::string_view name, DType dtype, AxisRef width) {
    if (!pads()) return step_.tensor(name, dtype, TensorRole::kActivation, {row_axis(), width});
    return step_.tensor(name, dtype, TensorRole::kActivation,
                        {experts(), {axis::kRoutedTokens, tokens_}, width});
  }
  TensorId integers(std::string_view name, std::initializer_list<AxisRef> axes) {
    return step_.tensor(name, DType::kInt32, TensorRole::kActivation, axes);
  }

  void route(bool imposes_scores) {
    const AxisRef columns{"router", model_.num_experts};
    const TensorRole role = TensorRole::kActivation;
    TensorId scores = step_.tensor("router", DType::kFp32, role, {step_.tokens(), columns});
    TensorViews reads{normed_,
                      step_.weight("router.weight", DType::kBf16, {columns, step_.hidden_axis()})};
    if (model_.router_bias && !model_.has_correction_bias) {
      reads.push_back(step_.weight("router.bias", DType::kBf16, {columns}));
    }
    step_.kernel("router", "routing_scores", DType::kBf16,
                 {{"tokens", tokens_, axis::kTokens},
                  {"hidden", model_.hidden_size, axis::kHidden},
                  {"experts_total", model_.num_experts}},
                 std::move(reads), {scores});
    if (imposes_scores) {
      scores = step_.tensor("imposed_scores", DType::kFp32, TensorRole::kInput,
                            {step_.tokens(), columns});
    }
    reads = {scores};
    if (model_.has_correction_bias) {
      reads.push_back(step_.weight("router.correction_bias", DType::kFp32, {columns}));
    }
    counts_ = integers("shuffle.counts", {experts()});
    num_rows_ = integers("shuffle.num_rows", {{"one", 1}});
    row_token_ = integers("shuffle.row_token", {row_axis()});
    row_weight_ = step_.tensor("shuffle.row_weight", DType::kFp32, role, {row_axis()});
    token_rows_ =
        integers("shuffle.token_rows", {step_.tokens(), {"topk", model_.num_experts_per_tok}});
    step_.kernel("shuffle", "index_shuffling", DType::kFp32,
                 {{"tokens", tokens_, axis::kTokens},
                  {"experts_total", model_.num_experts},
                  {"topk", model_.num_experts_per_tok},
                  {"groups", model_.n_group},
                  {"experts", model_.num_experts, axis::kExperts}},
                 std::move(reads), {counts_, num_rows_, row_token_, row_weight_, token_rows_});
  }

  void lower_shared() {
    if (model_.shared_expert_intermediate_size == 0) return;
    if (step_.options.moe_streams == 2) step_.set_stream(1);
    const TensorId input =
        step_.quantized("shared.quant", {normed_}, step_.tokens(), step_.hidden_axis()).front();
    shared_ = step_.options.fuse_scatter_add
                  ? output_
                  : step_.activation("shared_out", {step_.tokens(), step_.hidden_axis()});
    lower_swiglu(step_, "shared.", input, model_.shared_expert_intermediate_size, shared_);
    step_.set_stream(0);
  }

  TensorId gather() {
    const DType dtype = weights_.dtype;
    const TensorId rows = row_tensor("gather", dtype, step_.hidden_axis());
    const bool is_by_expert = pads() || design_ == MoeDesign::kConcatenation;
    TensorViews reads{normed_, row_token_, is_by_expert ? counts_ : num_rows_};
    if (model_.weighs_expert_inputs) reads.push_back(row_weight_);
    const DimRef hidden{"hidden", model_.hidden_size, axis::kHidden};
    if (design_ != MoeDesign::kConcatenation) {
      step_.kernel("gather", "gather_mul", dtype,
                   {{"tokens", tokens_, axis::kTokens}, computed_rows("rows"), hidden},
                   std::move(reads), {rows});
      return rows;
    }
    for_each_expert([&](std::int64_t expert, std::int64_t expert_rows) {
      step_.kernel("gather." + std::to_string(expert), "expert_gather", dtype,
                   {{"rows", expert_rows, axis::kRoutedTokens}, hidden, {"expert", expert, ""}},
                   reads, {rows});
    });
    return rows;
  }

  // gather() and multiply() in one.
  TensorId gather_and_multiply(AxisRef n) {
    constexpr std::string_view kName = "experts.gate_up";
    const TensorId y = row_tensor(kName, DType::kBf16, n);
    TensorViews reads{normed_, weights_.gate_up, counts_, row_token_};
    if (model_.weighs_expert_inputs) reads.push_back(row_weight_);
    step_.kernel(kName, "grouped_gemm_gather", weights_.dtype,
                 {chosen_rows(),
                  {"n", n.size, n.name},
                  {"k", model_.hidden_size, axis::kHidden},
                  {"groups", model_.num_experts, axis::kExperts},
                  {"active", dims_.active, axis::kActiveExperts},
                  {"tokens", tokens_, axis::kTokens}},
                 std::move(reads), {y});
    return y;
  }

  template <typename Visit>
  void for_each_expert(const Visit& visit) {
    const std::vector<std::int64_t> rows = expert_rows(
        step_.options.expert_load, model_.num_experts, model_.num_experts_per_tok, tokens_);
    for (std::int64_t e = 0; e < model_.num_experts; ++e) {
      visit(e, rows[static_cast<std::size_t>(e)]);
    }
  }

  // y[rows, n] = x[rows, k] w[expert of the row][n, k].
  TensorId multiply(std::string_view name, TensorId x, TensorId w, AxisRef n, AxisRef k) {
    const TensorId y = row_tensor(name, DType::kBf16, n);
    const DimRef columns{"n", n.size, n.name};
    const DimRef depth{"k", k.size, k.name};
    if (pads()) {
      step_.kernel(name, "batched_gemm", weights_.dtype,
                   {{"batch", model_.num_experts, axis::kExperts},
                    {"m", tokens_, axis::kRoutedTokens},
                    columns,
                    depth},
                   {x, w}, {y});
    } else if (design_ == MoeDesign::kSlicing) {
      for_each_expert([&](std::int64_t expert, std::int64_t expert_rows) {
        step_.kernel(
            std::string(name) + "." + std::to_string(expert), "expert_gemm", weights_.dtype,
            {{"m", expert_rows, axis::kRoutedTokens}, columns, depth, {"expert", expert, ""}},
            {x, w, counts_}, {y});
      });
    } else {
      step_.kernel(name, "grouped_gemm", weights_.dtype,
                   {chosen_rows(),
                    columns,
                    depth,
                    {"groups", model_.num_experts, axis::kExperts},
                    {"active", dims_.active, axis::kActiveExperts}},
                   {x, w, counts_}, {y});
    }
    return y;
  }

  TensorId activate(TensorId gate_up) {
    const TensorId activated =
        row_tensor("experts.act", weights_.dtype, {axis::kExpertFfn, model_.moe_intermediate_size});
    TensorViews reads{gate_up};
    if (!pads()) reads.push_back(num_rows_);
    step_.kernel("experts.act", "silu_mul", weights_.dtype,
                 {computed_rows("tokens"), {"ffn", model_.moe_intermediate_size, axis::kExpertFfn}},
                 std::move(reads), {activated});
    return activated;
  }

  void multiply_and_scatter(TensorId activated, AxisRef columns) {
    TensorViews reads{activated, weights_.down, counts_, row_token_};
    if (!model_.weighs_expert_inputs) reads.push_back(row_weight_);
    reads.push_back(output_);
    step_.kernel("experts.down", "grouped_gemm_scatter", weights_.dtype,
                 {chosen_rows(),
                  {"n", model_.hidden_size, axis::kHidden},
                  {"k", columns.size, columns.name},
                  {"groups", model_.num_experts, axis::kExperts},
                  {"active", dims_.active, axis::kActiveExperts},
                  {"tokens", tokens_, axis::kTokens}},
                 std::move(reads), {output_});
  }

  void scatter(TensorId rows) {
    TensorViews reads{rows, token_rows_};
    if (pads()) reads.push_back(counts_);
    if (!model_.weighs_expert_inputs) reads.push_back(row_weight_);
    if (shared_ >= 0) reads.push_back(shared_);
    step_.kernel("scatter", "scatter_add", DType::kBf16,
                 {{"tokens", tokens_, axis::kTokens},
                  chosen_rows(),
                  {"hidden", model_.hidden_size, axis::kHidden},
                  {"base", shared_ >= 0 ? 1 : 0, ""},
                  {"ranks", 1, ""}},
                 std::move(reads), {output_});
  }

  Lowering& step_;
  const ModelConfig& model_;
  MoeDesign design_;
  TensorId normed_;
  TensorId output_;
  std::int64_t tokens_;
  std::int64_t rows_;  // a row for each choice
  ExpectedDims dims_;
  ExpertWeights weights_;
  TensorId counts_ = -1;
  TensorId num_rows_ = -1;
  TensorId row_token_ = -1;
  TensorId row_weight_ = -1;
  TensorId token_rows_ = -1;
  TensorId shared_ = -1;
};

}  // namespace

std::string_view to_text(MoeDesign design) {
  return kMoeDesignNames[static_cast<std::size_t>(design)];
}

MoeDesign parse_moe_design(std::string_view text) {
  for (std::size_t i = 0; i < kMoeDesignNames.size(); ++i) {
    if (kMoeDesignNames[i] == text) return static_cast<MoeDesign>(i);
  }
  const std::vector<std::string_view> known(kMoeDesignNames.begin(), kMoeDesignNames.end());
  throw std::invalid_argument("moe design \"" + std::string(text) +
                              "\" is not known, expected fused, padding, slicing, concatenation, "
                              "shuffling or persistent; the nearest is \"" +
                              std::string(nearest(text, known)) + "\"");
}

void check_moe_design(const ModelConfig& model, const LoweringOptions& options) {
  if (options.shared_inside && options.moe_design != MoeDesign::kPersistent) {
    throw std::invalid_argument("moe shared_inside with design " +
                                std::string(to_text(options.moe_design)) +
                                ", expected design persistent, the one that is a single kernel");
  }
  if (options.capacity_percent != 0 && options.moe_design != MoeDesign::kPersistent) {
    throw std::invalid_argument("moe capacity_factor with design " +
                                std::string(to_text(options.moe_design)) +
                                ", which drops no token, expected design persistent, or no "
                                "capacity_factor");
  }
  if (options.moe_design == MoeDesign::kPersistent) {
    check_persistent_moe(model, options);
  } else if (options.moe_design != MoeDesign::kFused) {
    check_own_design(model, options);
  } else if (options.moe_streams != 1 || options.fuse_scatter_add || options.fuse_gather) {
    throw std::invalid_argument(
        "moe design fused computes routed experts in one op, so it has no second stream and no "
        "gather or scatter-add of its own; expected streams 1, no fuse_scatter_add and no "
        "fuse_gather, or another design");
  }
}

void lower_moe_design(Lowering& step, TensorId normed, TensorId output, bool imposes_scores) {
  DesignLowering(step, normed, output).run(imposes_scores);
}

}  // namespace orrery
