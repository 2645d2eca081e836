// orrery-gpu check moe: steps of small mixtures of experts, in all designs; orrery-gpu check mla:
// the same with latent attention, where replayed graphs must give what eager steps give, and
// collectives left out or late must be noticed.

#include <cstdio>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/devices.h"
#include "kernels/execute/check.h"
#include "kernels/execute/rank_batches.h"
#include "kernels/execute/rank_program.h"
#include "kernels/execute/row_moves.h"
#include "kernels/execute/wrong_plan.h"
#include "kernels/serve/rank_grid.h"
#include "kernels/tool/check_cases.h"
#include "kernels/tool/executor_setup.h"
#include "kernels/tool/persistent_moe.h"
#include "sim/model/model.h"
#include "sim/parallel/parallel.h"
#include "sim/parallel/rank_rows.h"
#include "sim/plan/halves.h"

namespace orrery::tool {
namespace {

constexpr int kNumDecodeSteps = 3;

// The last two have latent attention.
enum class SmallMoe : std::uint8_t { kQwen3, kLlama4, kDeepseek, kDeepseekV2Lite, kDeepseekV3 };

// A dense layer and 2 of 16 experts; attention of 4 heads over latents of 512 and rotated keys of
// 64. Queries from the hidden state, and softmax of 6; from a latent of 192, and sigmoid of 4 from
// 2 of 4 groups with a bias.
ModelConfig latent_model(SmallMoe kind) {
  const bool is_v3 = kind == SmallMoe::kDeepseekV3;
  ConfigFields fields{{"model_type", std::string(is_v3 ? "deepseek_v3" : "deepseek_v2")},
                      {"hidden_size", std::int64_t{256}},
                      {"vocab_size", std::int64_t{1003}},
                      {"num_hidden_layers", std::int64_t{3}},
                      {"num_attention_heads", std::int64_t{4}},
                      {"num_key_value_heads", std::int64_t{4}},
                      {"intermediate_size", std::int64_t{512}},
                      {"kv_lora_rank", std::int64_t{512}},
                      {"qk_nope_head_dim", std::int64_t{128}},
                      {"qk_rope_head_dim", std::int64_t{64}},
                      {"v_head_dim", std::int64_t{128}},
                      {"first_k_dense_replace", std::int64_t{1}},
                      {"n_routed_experts", std::int64_t{16}},
                      {"num_experts_per_tok", std::int64_t{is_v3 ? 4 : 6}},
                      {"moe_intermediate_size", std::int64_t{128}},
                      {"n_shared_experts", std::int64_t{2}},
                      {"n_group", std::int64_t{is_v3 ? 4 : 1}},
                      {"topk_group", std::int64_t{is_v3 ? 2 : 1}},
                      {"norm_topk_prob", is_v3},
                      {"routed_scaling_factor", is_v3 ? 2.5 : 1.0},
                      {"tie_word_embeddings", false}};
  if (is_v3) fields["q_lora_rank"] = std::int64_t{192};
  return model_config("small", fields);
}

// 2 layers of attention with grouped heads and 16 experts: softmax of 8, normalised; sigmoid of the
// best, which weighs its inputs, with a shared expert; sigmoid of 4 from 2 of 4 groups, with a bias
// for the choice, normalised, scaled, with shared experts.
ModelConfig model_of(SmallMoe kind) {
  if (kind == SmallMoe::kDeepseekV2Lite || kind == SmallMoe::kDeepseekV3) return latent_model(kind);
  const ConfigFields fields{{"model_type", std::string("qwen3_moe")},
                            {"hidden_size", std::int64_t{256}},
                            {"vocab_size", std::int64_t{1003}},
                            {"num_hidden_layers", std::int64_t{2}},
                            {"num_attention_heads", std::int64_t{4}},
                            {"num_key_value_heads", std::int64_t{2}},
                            {"head_dim", std::int64_t{64}},
                            {"num_experts", std::int64_t{16}},
                            {"num_experts_per_tok", std::int64_t{8}},
                            {"moe_intermediate_size", std::int64_t{128}},
                            {"norm_topk_prob", true},
                            {"tie_word_embeddings", false}};
  ModelConfig model = model_config("small", fields);
  if (kind == SmallMoe::kQwen3) return model;
  model.scoring_func = ScoringFunc::kSigmoid;
  model.shared_expert_intermediate_size = 128;
  if (kind == SmallMoe::kLlama4) {
    model.num_experts_per_tok = 1;
    model.norm_topk_prob = false;
    model.weighs_expert_inputs = true;
    return model;
  }
  model.num_experts_per_tok = 4;
  model.n_group = 4;
  model.topk_group = 2;
  model.router_bias = model.has_correction_bias = true;
  model.routed_scaling_factor = 2.5;
  return model;
}

struct MoeStep {
  SmallMoe kind = SmallMoe::kQwen3;
  MoeDesign design = MoeDesign::kShuffling;
  DType dtype = DType::kBf16;
  bool has_fp8_experts = false;  // and the rest in `dtype`
  int streams = 1;
  bool fuses_scatter = false;
  bool fuses_gather = false;
  bool shared_inside = false;
  std::int64_t capacity_percent = 0;
  bool is_skewed = false;  // by a bias on the logits of the router
  Mesh mesh;
  bool has_unlike_ranks = false;  // two data-parallel ones with batches of their own
};

std::string describe(const Mesh& mesh) {
  std::string text;
  const auto add = [&](const char* name, int ways) {
    if (ways > 1) text.append(" ").append(name).append(" ").append(std::to_string(ways));
  };
  add("tp", mesh.tp);
  add("dp", mesh.dp);
  add("cp", mesh.cp);
  add("ep", mesh.ep);
  if (mesh.ffn_instances > 0) text += " experts apart";
  add("ffn_tp", mesh.ffn_tp);
  if (mesh.dp > 1 && mesh.ep > 1) {
    text.append(" ").append(kExpertCommNames[static_cast<std::size_t>(mesh.expert_comm)]);
  }
  if (mesh.two_batch_overlap) text += " in halves";
  if (mesh.moe_chunks > 1) text += " in " + std::to_string(mesh.moe_chunks) + " chunks";
  if (mesh.sp) text += " sp";
  if (!mesh.expert_of_slot.empty() && mesh.num_redundant_experts == 0) {
    text += " experts in another order";
  } else if (!mesh.expert_of_slot.empty()) {
    text += " copies of " + std::to_string(mesh.num_redundant_experts) + " experts";
  }
  text += describe_choices(mesh);
  return text;
}

std::string describe(const MoeStep& step) {
  constexpr const char* kNames[] = {"qwen3", "llama4", "deepseek", "deepseek v2-lite mla",
                                    "deepseek v3 mla"};
  std::string text = "moe " + std::string(kNames[static_cast<int>(step.kind)]) + " " +
                     std::string(to_text(step.design)) + " " + std::string(to_text(step.dtype));
  if (step.has_fp8_experts) text += " experts fp8";
  if (step.streams > 1) text += " streams " + std::to_string(step.streams);
  if (step.fuses_scatter) text += " fused scatter";
  if (step.fuses_gather) text += " fused gather";
  if (step.shared_inside) text += " shared expert inside";
  if (step.capacity_percent > 0) {
    text += " capacity " + std::to_string(step.capacity_percent) + " %";
  }
  if (step.is_skewed) text += " skewed";
  return text + describe(step.mesh) + (step.has_unlike_ranks ? " unlike batches" : "");
}

// As bf16 has them: 1 to -1 from the first expert to the last of 16.
std::vector<float> skewed_bias(std::int64_t experts) {
  std::vector<float> bias(static_cast<std::size_t>(experts));
  for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = 1 - static_cast<float>(i) / 8;
  return bias;
}

CheckedDeployment deployment_of(const MoeStep& step) {
  const ModelConfig model = model_of(step.kind);
  LoweringOptions options;
  options.precision.weights = options.precision.activations = step.dtype;
  if (step.has_fp8_experts) options.precision.expert_weights = DType::kFp8;
  options.moe_design = step.design;
  options.moe_streams = step.streams;
  options.fuse_scatter_add = step.fuses_scatter;
  options.fuse_gather = step.fuses_gather;
  options.shared_inside = step.shared_inside;
  options.capacity_percent = step.capacity_percent;
  const Mesh mesh = step.mesh;
  const bool has_unlike_ranks = step.has_unlike_ranks;
  Routing routing = routing_of(model);
  routing.expert_of_slot.assign(mesh.expert_of_slot.begin(), mesh.expert_of_slot.end());
  if (step.is_skewed) routing.bias = skewed_bias(model.num_experts);
  return {.name = describe(step),
          .grid = grid_of(mesh),
          .numbers = {.head_dim = model.rotary_dim(),
                      .max_positions = 512,
                      .routing = std::move(routing)},
          .vocab = model.vocab_size,
          .lower = [=](const StepInput& input, std::int64_t num_decodes) {
            StepPlans plans{.whole = lower(model, batch_of(input, num_decodes), options)};
            plans.plan =
                has_unlike_ranks || mesh.two_batch_overlap
                    ? step_plan(model, shape_of_unlike(input, num_decodes, mesh), options, mesh)
                    : parallelize(plans.whole, mesh);
            return plans;
          }};
}

// Collectives whose absence must show: of even rows, where there are some, those alone, since other
// ops would take what they find for counts.
std::vector<std::string> left_out(const Plan& plan) {
  const RowMoves rows = row_moves(plan);
  if (!rows.has_even) return collective_names(plan);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < rows.moves.size(); ++i) {
    if (rows.moves[i] != RowMove::kNone) names.push_back(printed_name(plan.ops()[i]));
  }
  return names;
}

class StepCheck : public CheckCases {
 public:
  using CheckCases::CheckCases;

  // A conversation eagerly and, where no host waits, as graphs with more rows than decodes.
  void check_steps(const MoeStep& step) {
    if (is_skipped(describe(step), step.mesh)) return;
    MoeStep plain = step;
    plain.mesh = {};
    plain.has_unlike_ranks = false;
    plain.design = MoeDesign::kShuffling;
    plain.streams = 1;
    plain.fuses_scatter = plain.fuses_gather = false;
    plain.shared_inside = false;
    plain.capacity_percent = 0;
    std::vector<CheckedStep> of_one = reference_conversation(deployment_of(plain), kNumDecodeSteps);
    if (step.has_unlike_ranks) of_one = on_unlike_ranks(std::move(of_one));
    if (step.mesh.two_batch_overlap) of_one = in_halves(std::move(of_one), step.mesh.dp);
    const auto steps = std::make_shared<const std::vector<CheckedStep>>(std::move(of_one));
    const CheckedDeployment deployment = deployment_of(step);
    const DType bounds = step.has_fp8_experts ? DType::kFp8 : step.dtype;
    check_conversation(deployment, steps, {.records_scores = true}, " eager", bounds);
    const StepPlans plans = deployment.lower(steps->front().input, 0);
    const ConversationOptions graph{
        .decode_mode = LaunchMode::kGraph, .decode_rows = 8, .records_scores = true};
    if (host_waits(plans.plan, 0).empty()) {
      check_conversation(deployment, steps, graph, " graph of 8 rows", bounds);
      return;
    }
    check_refused(deployment.name + " graph",
                  [&] { static_cast<void>(run_conversation(deployment, *steps, graph)); });
  }

  // Logits and tokens of graphs are those of eager steps, to the bit.
  void check_graph(const MoeStep& step) {
    if (is_skipped(describe(step), step.mesh)) return;
    const CheckedDeployment deployment = deployment_of(step);
    const std::string what = deployment.name + " graph against eager";
    guarded(what, [&] {
      std::vector<CheckedStep> steps =
          reference_conversation(deployment_of({.kind = step.kind}), kNumDecodeSteps);
      if (step.has_unlike_ranks) steps = on_unlike_ranks(std::move(steps));
      const ExecutedConversation eager = run_conversation(deployment, steps, {});
      const ExecutedConversation graph =
          run_conversation(deployment, steps, {.decode_mode = LaunchMode::kGraph});
      std::vector<std::vector<double>> expected;
      expected.reserve(eager.logits.size());
      for (const std::vector<float>& logits : eager.logits) {
        expected.emplace_back(logits.begin(), logits.end());
      }
      const ConversationDifference difference =
          compare_conversations(graph, expected, eager.next_tokens, 0);
      count(difference.logits == 0 && difference.wrong_tokens == 0);
      std::printf("%s %s  logits %.2e (<= 0)  tokens %d of %d wrong\n", verdict(), what.c_str(),
                  difference.logits, difference.wrong_tokens, difference.num_tokens);
    });
  }

  // Each collective of a prefill left out, or behind the op that needs it: the logits must tell.
  void check_wrong_collectives(const MoeStep& step) {
    if (is_skipped(describe(step), step.mesh)) return;
    const CheckedDeployment split = deployment_of(step);
    std::vector<CheckedStep> steps = {
        reference_conversation(deployment_of({.kind = step.kind}), 0).front()};
    if (step.has_unlike_ranks) steps = on_unlike_ranks(std::move(steps));
    const double bound = moe_bounds(step.dtype).logits;
    for (const std::string& name : left_out(split.lower(steps[0].input, 0).plan)) {
      const auto check = [&](const char* how, Plan (*make_wrong)(const Plan&, std::string_view)) {
        const std::string what = split.name + " with " + name + " " + how;
        guarded(what, [&] {
          const auto change = [&](const Plan& right) { return make_wrong(right, name); };
          const ConversationDifference difference =
              compare_conversations(run_conversation(split, steps, {.change = change}),
                                    {steps[0].logits}, {steps[0].next_tokens}, bound);
          count(difference.logits > bound || difference.wrong_tokens > 0);
          std::printf("%s %s  noticed: logits %.2e (> %.1e), %d of %d tokens wrong\n", verdict(),
                      what.c_str(), difference.logits, bound, difference.wrong_tokens,
                      difference.num_tokens);
        });
      };
      check("left out", without_op);
      check("too late", with_op_late);
    }
  }

  // References run meanwhile; their lines come here.
  void finish() {
    for (auto& pending : pending_) pending.get()();
    pending_.clear();
  }

 private:
  using Report = std::function<void()>;

  void check_conversation(const CheckedDeployment& deployment,
                          const std::shared_ptr<const std::vector<CheckedStep>>& steps,
                          const ConversationOptions& options, const char* mode, DType dtype) {
    const std::string what = deployment.name + mode;
    guarded(what, [&] {
      auto found = std::make_shared<const ExecutedConversation>(
          run_conversation(deployment, *steps, options));
      pending_.push_back(std::async(std::launch::async, [=, this]() -> Report {
        return conversation_report(what, deployment, *steps, options.decode_rows, *found, dtype);
      }));
    });
  }

  Report conversation_report(const std::string& what, const CheckedDeployment& deployment,
                             const std::vector<CheckedStep>& steps, std::int64_t decode_rows,
                             const ExecutedConversation& found, DType dtype) {
    const MoeBounds bounds = moe_bounds(dtype);
    try {
      const RepeatedConversation expected =
          repeat_conversation(deployment, steps, decode_rows, found.scores);
      const ConversationDifference difference =
          compare_conversations(found, expected.logits, expected.next_tokens, bounds.logits);
      return [=, this] {
        count(difference.logits <= bounds.logits && difference.wrong_tokens == 0 &&
              expected.score_difference <= bounds.scores);
        std::printf(
            "%s %s  logits %.2e (<= %.1e)  scores %.2e (<= %.1e)  tokens %d of %d wrong, %d near "
            "ties\n",
            verdict(), what.c_str(), difference.logits, bounds.logits, expected.score_difference,
            bounds.scores, difference.wrong_tokens, difference.num_tokens, difference.near_ties);
        std::fflush(stdout);
      };
    } catch (const std::exception& error) {
      return [this, what, message = std::string(error.what())] {
        count(false);
        std::printf("FAIL %s: %s\n", what.c_str(), message.c_str());
      };
    }
  }

  std::vector<std::future<Report>> pending_;
};

void check_one_gpu(StepCheck& check) {
  using enum MoeDesign;
  for (const SmallMoe kind : {SmallMoe::kQwen3, SmallMoe::kLlama4, SmallMoe::kDeepseek}) {
    for (const MoeDesign design : {kShuffling, kPadding, kSlicing, kConcatenation}) {
      check.check_steps({.kind = kind, .design = design});
    }
    check.check_steps({.kind = kind, .dtype = DType::kFp8});
    check.check_steps({.kind = kind, .fuses_gather = true});
  }
  check.check_steps({.kind = SmallMoe::kQwen3, .design = kPersistent});
  check.check_steps({.kind = SmallMoe::kQwen3, .design = kPersistent, .dtype = DType::kFp8});
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    for (const bool is_inside : {false, true}) {
      check.check_steps({.kind = SmallMoe::kDeepseek,
                         .design = kPersistent,
                         .dtype = dtype,
                         .shared_inside = is_inside});
    }
  }
  check.check_steps({.kind = SmallMoe::kQwen3, .design = kPersistent, .capacity_percent = 50});
  check.check_steps({.kind = SmallMoe::kQwen3, .design = kPersistent, .is_skewed = true});
  check.check_steps({.kind = SmallMoe::kDeepseek,
                     .design = kPersistent,
                     .dtype = DType::kFp8,
                     .shared_inside = true,
                     .capacity_percent = 75,
                     .is_skewed = true});
  check.check_steps({.kind = SmallMoe::kLlama4, .streams = 2});
  check.check_steps({.kind = SmallMoe::kLlama4, .streams = 2, .fuses_scatter = true});
  check.check_steps(
      {.kind = SmallMoe::kLlama4, .streams = 2, .fuses_scatter = true, .fuses_gather = true});
  check.check_steps({.kind = SmallMoe::kLlama4, .has_fp8_experts = true});
  check.check_steps({.kind = SmallMoe::kLlama4, .has_fp8_experts = true, .streams = 2});
  check.check_steps({.kind = SmallMoe::kQwen3, .design = kPersistent, .has_fp8_experts = true});
  check.check_steps({.kind = SmallMoe::kDeepseek, .has_fp8_experts = true});
}

std::vector<Mesh> meshes_of_two() {
  return {{.tp = 2},
          {.tp = 2, .ep = 2},
          {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kEager},
          {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kGraph},
          {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kCopies},
          {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kTokens}};
}

// Even parts of all data-parallel ranks' rows.
void check_even_rows(StepCheck& check) {
  for (const ExpertComm comm : {ExpertComm::kEager, ExpertComm::kGraph, ExpertComm::kTokens}) {
    const Mesh mesh{.dp = 2, .ep = 2, .dp_rows = DpRows::kBalanced, .expert_comm = comm};
    for (const bool has_unlike_ranks : {false, true}) {
      for (const SmallMoe kind : {SmallMoe::kQwen3, SmallMoe::kDeepseek}) {
        check.check_steps({.kind = kind, .mesh = mesh, .has_unlike_ranks = has_unlike_ranks});
      }
    }
  }
  check.check_steps({.kind = SmallMoe::kQwen3,
                     .design = MoeDesign::kPersistent,
                     .mesh = {.dp = 2, .ep = 2, .dp_rows = DpRows::kBalanced},
                     .has_unlike_ranks = true});
}

// Tokens of experts in chunks, of which a rank may have fewer than chunks, or none.
void check_chunks(StepCheck& check) {
  for (const ExpertComm comm : {ExpertComm::kEager, ExpertComm::kGraph, ExpertComm::kCopies}) {
    for (const int chunks : {2, 3}) {
      const Mesh mesh{.dp = 2, .ep = 2, .expert_comm = comm, .moe_chunks = chunks};
      for (const SmallMoe kind : {SmallMoe::kQwen3, SmallMoe::kLlama4, SmallMoe::kDeepseek}) {
        check.check_steps({.kind = kind, .mesh = mesh});
        check.check_steps({.kind = kind, .mesh = mesh, .has_unlike_ranks = true});
      }
      check.check_steps({.kind = SmallMoe::kDeepseek, .streams = 2, .mesh = mesh});
      check.check_steps({.kind = SmallMoe::kQwen3, .dtype = DType::kFp8, .mesh = mesh});
    }
  }
}

void check_two_gpus(StepCheck& check) {
  check_even_rows(check);
  check_chunks(check);
  for (const Mesh& mesh : meshes_of_two()) {
    for (const SmallMoe kind : {SmallMoe::kQwen3, SmallMoe::kLlama4, SmallMoe::kDeepseek}) {
      check.check_steps({.kind = kind, .mesh = mesh});
      if (mesh.dp == 2) {
        check.check_steps({.kind = kind, .mesh = mesh, .has_unlike_ranks = true});
      }
    }
  }
  for (const Mesh& mesh : meshes_of_two()) {
    check.check_steps({.kind = SmallMoe::kLlama4, .has_fp8_experts = true, .mesh = mesh});
  }
  for (const bool has_unlike_ranks : {false, true}) {
    check.check_steps({.kind = SmallMoe::kQwen3,
                       .design = MoeDesign::kPersistent,
                       .mesh = {.dp = 2, .ep = 2},
                       .has_unlike_ranks = has_unlike_ranks});
    check.check_steps({.kind = SmallMoe::kQwen3,
                       .design = MoeDesign::kPersistent,
                       .dtype = DType::kFp8,
                       .mesh = {.dp = 2, .ep = 2},
                       .has_unlike_ranks = has_unlike_ranks});
    check.check_steps({.kind = SmallMoe::kDeepseek,
                       .design = MoeDesign::kPersistent,
                       .shared_inside = true,
                       .mesh = {.dp = 2, .ep = 2},
                       .has_unlike_ranks = has_unlike_ranks});
    check.check_steps({.kind = SmallMoe::kQwen3,
                       .design = MoeDesign::kPersistent,
                       .capacity_percent = 50,
                       .is_skewed = true,
                       .mesh = {.dp = 2, .ep = 2},
                       .has_unlike_ranks = has_unlike_ranks});
  }
  const std::vector<std::int64_t> order{15, 3, 9, 0, 1, 2, 5, 4, 14, 6, 7, 8, 10, 13, 11, 12};
  for (const SmallMoe kind : {SmallMoe::kQwen3, SmallMoe::kDeepseek}) {
    for (const DType dtype : {DType::kBf16, DType::kFp8}) {
      check.check_steps({.kind = kind,
                         .design = MoeDesign::kPersistent,
                         .dtype = dtype,
                         .is_skewed = true,
                         .mesh = {.dp = 2, .ep = 2, .expert_of_slot = order},
                         .has_unlike_ranks = true});
    }
  }
  for (Mesh mesh : meshes_of_two()) {
    if (mesh.ep == 1) continue;
    mesh.num_redundant_experts = 2;
    mesh.expert_of_slot = {15, 3, 9, 0, 1, 2, 5, 4, 9, 6, 7, 8, 10, 3, 11, 12, 13, 14};
    for (const SmallMoe kind : {SmallMoe::kQwen3, SmallMoe::kDeepseek}) {
      check.check_steps({.kind = kind, .mesh = mesh});
    }
  }
  const SharedExpert whole = SharedExpert::kReplicated;
  const MoeGather routed = MoeGather::kRouted;
  for (const Mesh& mesh : {Mesh{.tp = 2, .shared_expert = whole},
                           Mesh{.tp = 2, .ep = 2, .sp = true, .moe_gather = routed}}) {
    check.check_steps({.kind = SmallMoe::kDeepseek, .mesh = mesh});
  }
  const Mesh apart{.ffn_instances = 1};
  for (const SmallMoe kind : {SmallMoe::kQwen3, SmallMoe::kDeepseek}) {
    check.check_steps({.kind = kind, .mesh = apart});
  }
  check.check_steps({.kind = SmallMoe::kQwen3, .dtype = DType::kFp8, .mesh = apart});
}

void check_four_gpus(StepCheck& check) {
  using enum ExpertComm;
  for (const ExpertComm comm : {kEager, kGraph, kCopies, kTokens}) {
    check.check_steps(
        {.kind = SmallMoe::kDeepseek, .mesh = {.dp = 2, .tp = 2, .ep = 4, .expert_comm = comm}});
  }
  for (const ExpertComm comm : {kDedup, kDedupGraph}) {
    check.check_steps(
        {.kind = SmallMoe::kDeepseek, .mesh = {.dp = 2, .tp = 2, .ep = 2, .expert_comm = comm}});
  }
  check.check_steps({.kind = SmallMoe::kLlama4, .mesh = {.tp = 4, .ep = 4}});
  check.check_steps({.kind = SmallMoe::kQwen3, .mesh = {.ep = 2, .ffn_instances = 1, .ffn_tp = 2}});
}

void check_latents_of_even_rows(StepCheck& check, SmallMoe kind, Mesh mesh) {
  check.check_steps({.kind = kind, .mesh = mesh, .has_unlike_ranks = true});
  check.check_graph({.kind = kind, .mesh = mesh, .has_unlike_ranks = true});
  check.check_wrong_collectives({.kind = kind, .mesh = mesh, .has_unlike_ranks = true});
  if (kind != SmallMoe::kDeepseekV3) return;  // without latents of queries
  mesh.attention_gather = AttentionGather::kProjected;
  for (const ExpertComm comm : {ExpertComm::kEager, ExpertComm::kGraph}) {
    mesh.expert_comm = comm;
    check.check_steps({.kind = kind, .mesh = mesh, .has_unlike_ranks = true});
  }
  check.check_graph({.kind = kind, .mesh = mesh, .has_unlike_ranks = true});
}

}  // namespace

CheckCount check_mla() {
  StepCheck check(cuda::device_count());
  for (const SmallMoe kind : {SmallMoe::kDeepseekV2Lite, SmallMoe::kDeepseekV3}) {
    for (const Mesh& mesh : {Mesh{}, Mesh{.tp = 2}, Mesh{.tp = 4}, Mesh{.cp = 2},
                             Mesh{.cp = 2, .ep = 2}, Mesh{.tp = 2, .cp = 2}}) {
      check.check_steps({.kind = kind, .mesh = mesh});
      check.check_graph({.kind = kind, .mesh = mesh});
    }
    for (const Mesh& mesh : {Mesh{.tp = 2}, Mesh{.cp = 2}}) {
      check.check_wrong_collectives({.kind = kind, .mesh = mesh});
    }
    // Attention of data-parallel ranks, and one page table in place of theirs.
    const Mesh apart{.dp = 2, .ep = 2, .expert_comm = ExpertComm::kGraph};
    check.check_steps({.kind = kind, .mesh = apart, .has_unlike_ranks = true});
    const Mesh dealt{.cp = 2,
                     .ep = 2,
                     .cp_weights = CpWeights::kReplicated,
                     .cp_decodes = CpDecodes::kDealt,
                     .expert_comm = ExpertComm::kGraph};
    check.check_steps({.kind = kind, .mesh = dealt});
    check.check_graph({.kind = kind, .mesh = dealt});
    Mesh sharded = apart;
    sharded.o_proj = OProjection::kSharded;
    sharded.lm_head = LmHead::kJoined;
    check.check_steps({.kind = kind, .mesh = sharded, .has_unlike_ranks = true});
    Mesh even = apart;
    even.dp_rows = DpRows::kBalanced;
    check_latents_of_even_rows(check, kind, even);
  }
  const AttentionGather projected = AttentionGather::kProjected;
  check.check_steps({.kind = SmallMoe::kDeepseekV3,
                     .mesh = {.tp = 2, .sp = true, .attention_gather = projected}});
  check.finish();
  return check.result();
}

CheckCount check_halves() {
  StepCheck check(cuda::device_count());
  for (Mesh mesh : meshes_of_two()) {
    if (mesh.expert_comm == ExpertComm::kCopies) continue;  // not in halves
    mesh.two_batch_overlap = true;
    mesh.num_micro_batches = kNumHalves;
    check.check_steps({.kind = SmallMoe::kQwen3, .mesh = mesh});
    check.check_steps({.kind = SmallMoe::kDeepseek, .mesh = mesh});
  }
  // Both halves multiply by weights that are gathered once.
  const Mesh sharded{.dp = 2,
                     .ep = 2,
                     .num_micro_batches = kNumHalves,
                     .expert_comm = ExpertComm::kGraph,
                     .o_proj = OProjection::kSharded,
                     .two_batch_overlap = true};
  for (const SmallMoe kind : {SmallMoe::kQwen3, SmallMoe::kDeepseek}) {
    check.check_steps({.kind = kind, .mesh = sharded});
  }
  check.finish();
  return check.result();
}

CheckCount check_moe() {
  StepCheck check(cuda::device_count());
  for (void (*const part)(StepCheck&) : {check_four_gpus, check_two_gpus, check_one_gpu}) {
    part(check);
    check.finish();
  }
  return check.result();
}

std::vector<std::int32_t> tokens_of_persistent_moe(const ProcessGroup& processes, DType dtype) {
  const CheckedDeployment deployment = deployment_of({.kind = SmallMoe::kQwen3,
                                                      .design = MoeDesign::kPersistent,
                                                      .dtype = dtype,
                                                      .mesh = {.dp = 2, .ep = 2},
                                                      .has_unlike_ranks = true});
  const std::vector<CheckedStep> steps = on_unlike_ranks(
      reference_conversation(deployment_of({.kind = SmallMoe::kQwen3}), kNumDecodeSteps));
  std::vector<std::int32_t> tokens;
  for (const LaunchMode mode : {LaunchMode::kEager, LaunchMode::kGraph}) {
    const ExecutedConversation found =
        run_conversation(deployment, steps, {.decode_mode = mode, .processes = processes});
    for (const auto& of_step : found.next_tokens) {
      tokens.insert(tokens.end(), of_step.begin(), of_step.end());
    }
  }
  return tokens;
}

}  // namespace orrery::tool
