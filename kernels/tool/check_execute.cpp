#include <algorithm>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cuda/devices.h"
#include "kernels/execute/check.h"
#include "kernels/execute/rank_batches.h"
#include "kernels/execute/wrong_plan.h"
#include "kernels/serve/rank_grid.h"
#include "kernels/tool/check_cases.h"
#include "kernels/tool/checks.h"
#include "sim/model/model.h"
#include "sim/parallel/parallel.h"
#include "sim/parallel/rank_rows.h"
#include "sim/plan/halves.h"

namespace orrery::tool {
namespace {

constexpr int kNumDecodeSteps = 12;
// Of decodes alone: the first sequences take a second block where two ranks share each.
constexpr int kNumDecodedSteps = 134;
constexpr int kFewDecodedSteps = 12;

// Largest difference of a logit over the largest logit of its step. A sum in another order is
// rounded the other way now and then, and what follows moves by a rounding: in bf16 by 2^-8, in fp8
// by 2^-4 of an element. How far that carries over four layers, the reference shows by itself:
// split over 2 or 4 ranks, its logits move by 1.5e-2 (bf16) and 1.1e-1 to 1.4e-1 (fp8). Bounds are
// half as much again; a collective left out moves them by about 1.
constexpr double kBf16LogitBound = 2.5e-2;
constexpr double kFp8LogitBound = 2e-1;

struct SmallModel {
  const char* type = "llama";
  std::int64_t head_dim = 64;
  DType dtype = DType::kBf16;
  std::int64_t ffn = 1024;
};

// 4 layers, 2 key heads, a vocabulary that four ranks do not divide.
ModelConfig model_of(const SmallModel& small) {
  constexpr std::int64_t kHidden = 512;
  const ConfigFields fields{{"model_type", std::string(small.type)},
                            {"hidden_size", kHidden},
                            {"vocab_size", std::int64_t{1006}},
                            {"num_hidden_layers", std::int64_t{4}},
                            {"num_attention_heads", kHidden / small.head_dim},
                            {"num_key_value_heads", std::int64_t{2}},
                            {"head_dim", small.head_dim},
                            {"intermediate_size", small.ffn},
                            {"tie_word_embeddings", false}};
  return model_config("small", fields);
}

std::string describe(const SmallModel& small, const Mesh& mesh) {
  std::string text = "execute " + std::string(small.type) + " head_dim " +
                     std::to_string(small.head_dim) + " " + std::string(to_text(small.dtype));
  if (small.ffn != SmallModel{}.ffn) text += " ffn " + std::to_string(small.ffn);
  const auto add = [&](const char* name, int ways) {
    if (ways > 1) text.append(" ").append(name).append(" ").append(std::to_string(ways));
  };
  add("tp", mesh.tp);
  add("pp", mesh.pp);
  add("dp", mesh.dp);
  if (!mesh.two_batch_overlap) add("micro-batches", mesh.num_micro_batches);
  if (mesh.ffn_instances > 0) {
    text += " ffn apart";
    add("ffn_tp", mesh.ffn_tp);
    if (mesh.ffn_schedule == FfnSchedule::kLock) text += " lock";
  }
  if (mesh.two_batch_overlap) text += " in halves";
  if (mesh.sp) text += " sp";
  text += describe_choices(mesh);
  add("cp", mesh.cp);
  if (mesh.cp > 1 && mesh.cp_weights == CpWeights::kReplicated) text += " replicated";
  if (mesh.cp_prefill == CpPrefill::kRing) text += " ring";
  if (mesh.cp_decodes == CpDecodes::kDealt) text += " dealt";
  return text;
}

// Rows of prompts do not divide into micro-batches as FFNs apart from attention need them.
Mesh mesh_of_step(Mesh mesh, const StepInput& input) {
  if (mesh.ffn_instances > 0 && !input.prefill.empty()) mesh.num_micro_batches = 1;
  return mesh;
}

CheckedDeployment deployment_of(const SmallModel& small, const Mesh& mesh) {
  const ModelConfig model = model_of(small);
  LoweringOptions options;
  options.precision.weights = options.precision.activations = small.dtype;
  return {.name = describe(small, mesh),
          .grid = grid_of(mesh),
          .numbers = {.head_dim = small.head_dim, .max_positions = 512},
          .vocab = model.vocab_size,
          .lower = [=](const StepInput& input, std::int64_t num_decodes) {
            StepPlans plans{.whole = lower(model, batch_of(input, num_decodes), options)};
            if (mesh.two_batch_overlap) {
              plans.plan = step_plan(
                  model, alike_shape(fullest_batch(input, 2 * mesh.dp, num_decodes), mesh), options,
                  mesh);
            } else if (mesh.dp > 1 && names_ranks(input)) {
              plans.plan =
                  step_plan(model, shape_of_unlike(input, num_decodes, mesh), options, mesh);
            } else {
              plans.plan = parallelize(plans.whole, mesh_of_step(mesh, input));
            }
            return plans;
          }};
}

struct Mistake {
  std::string_view description;
  Plan (*make)(const Plan& plan, std::string_view name);
};
constexpr Mistake kMistakes[] = {{"left out", without_op}, {"too late", with_op_late}};

class ExecuteCheck {
 public:
  explicit ExecuteCheck(int num_gpus) : num_gpus_(num_gpus) {}

  void check_model(const SmallModel& small, std::span<const Mesh> meshes) {
    const CheckedDeployment single = deployment_of(small, {});
    const std::vector<CheckedStep> steps = reference_conversation(single, kNumDecodeSteps);
    const double bound = small.dtype == DType::kFp8 ? kFp8LogitBound : kBf16LogitBound;
    for (const CheckedStep& step : steps) {
      reference_.logits.push_back(step.logits);
      reference_.tokens.push_back(step.next_tokens);
    }
    ExecutedConversation eager;
    const auto run = [&](const CheckedDeployment& deployment, const ConversationOptions& options) {
      return run_conversation(deployment, steps, options);
    };
    guarded(single.name, [&] {
      eager = run(single, {});
      report(single.name + " eager", eager, reference_, bound);
    });
    const Expected one_gpu = expected_of(eager);
    guarded(single.name, [&] {
      report(single.name + " eager, all steps prepared first",
             run(single, {.prepares_first = true}), one_gpu, bound);
    });
    guarded(single.name, [&] {
      const auto graph = run(single, {.decode_mode = LaunchMode::kGraph});
      report(single.name + " graph", graph, reference_, bound);
      report(single.name + " graph against eager", graph, one_gpu, bound);
      report(single.name + " graph of 8 rows",
             run(single, {.decode_mode = LaunchMode::kGraph, .decode_rows = 8}), reference_, bound);
    });
    if (small.dtype == DType::kBf16 && !model_of(small).attention_bias) {
      check_megakernel(single, run, bound);  // which has no instruction for a bias
    }
    for (const Mesh& mesh : meshes) {
      const CheckedDeployment split = deployment_of(small, mesh);
      if (is_skipped(split)) continue;
      guarded(split.name, [&] {
        for (const LaunchMode mode : {LaunchMode::kEager, LaunchMode::kGraph}) {
          const auto found = run(split, {.decode_mode = mode});
          const char* const text = mode == LaunchMode::kGraph ? " graph" : " eager";
          report(split.name + text + " against one GPU", found, one_gpu, bound);
        }
        if (mesh.tp > 1 || mesh.ffn_instances > 0) {
          report(split.name + " by NCCL alone against one GPU", run(split, {.only_nccl = true}),
                 one_gpu, bound);
        }
      });
    }
    check_unlike_ranks(small, {.dp = 2}, steps, eager, bound);
    check_unlike_ranks(small, {.dp = 2, .dp_rows = DpRows::kBalanced}, steps, eager, bound);
    check_unlike_ranks(small, {.dp = 4, .dp_rows = DpRows::kBalanced}, steps, eager, bound);
    check_halves(small, steps, eager, bound);
    reference_ = {};
  }

  // Steps of decodes alone: over parts of their context, or with FFNs apart, a row or more for each
  // attention rank and micro-batch.
  void check_decodes_alone(const SmallModel& small, std::span<const Mesh> meshes) {
    const CheckedDeployment single = deployment_of(small, {});
    const std::vector<CheckedStep> steps = decoded_conversation(single, kNumDecodedSteps);
    Expected one_gpu;
    guarded(single.name, [&] {
      for (const CheckedStep& step : steps) {
        reference_.logits.push_back(step.logits);
        reference_.tokens.push_back(step.next_tokens);
      }
      const ExecutedConversation found = run_conversation(single, steps, {});
      report(single.name + " decodes alone", found, reference_, kBf16LogitBound);
      one_gpu = expected_of(found);
    });
    reference_ = {};
    for (const Mesh& mesh : meshes) {
      const CheckedDeployment split = deployment_of(small, mesh);
      if (is_skipped(split)) continue;
      const std::int64_t rows = std::max(4, mesh.dp * mesh.num_micro_batches);
      guarded(split.name, [&] {
        for (const LaunchMode mode : {LaunchMode::kEager, LaunchMode::kGraph}) {
          const auto found =
              run_conversation(split, steps, {.decode_mode = mode, .decode_rows = rows});
          const char* const text = mode == LaunchMode::kGraph ? " graph" : " eager";
          report(split.name + text + " against one GPU", found, one_gpu, kBf16LogitBound);
        }
      });
      if (mesh.ffn_instances > 0) continue;  // those of one rank on either side say enough
      check_wrong_collectives(split, std::span(steps).first(kFewDecodedSteps));
    }
  }

  // Two data-parallel ranks with batches of their own, and those beside them with none; decodes as
  // graphs of 8 rows on each.
  void check_unlike_ranks(const SmallModel& small, const Mesh& mesh,
                          const std::vector<CheckedStep>& steps,
                          const ExecutedConversation& one_gpu, double bound) {
    CheckedDeployment split = deployment_of(small, mesh);
    if (is_skipped(split)) return;
    split.name += " unlike batches";
    split.lower = [=](const StepInput& input, std::int64_t num_decodes) {
      LoweringOptions options;
      options.precision.weights = options.precision.activations = small.dtype;
      return StepPlans{.plan = step_plan(model_of(small), shape_of_unlike(input, num_decodes, mesh),
                                         options, mesh)};
    };
    const std::vector<CheckedStep> unlike = on_unlike_ranks(steps);
    for (const LaunchMode mode : {LaunchMode::kEager, LaunchMode::kGraph}) {
      const std::string what =
          split.name + (mode == LaunchMode::kGraph ? " graph of 8 rows" : " eager");
      guarded(what, [&] {
        const std::int64_t rows = mode == LaunchMode::kGraph ? 8 : 4;
        report(what + " against one GPU",
               run_conversation(split, unlike, {.decode_mode = mode, .decode_rows = rows}),
               expected_of(one_gpu), bound);
      });
    }
  }

  // Steps in two halves that overlap; decodes as graphs of 8 rows in each.
  void check_halves(const SmallModel& small, const std::vector<CheckedStep>& steps,
                    const ExecutedConversation& one_gpu, double bound) {
    std::vector<Mesh> meshes{{.tp = 2}, {.tp = 2, .sp = true}, {.dp = 2, .tp = 2}, {.tp = 4}};
    for (Mesh& mesh : meshes) {
      mesh.two_batch_overlap = true;
      mesh.num_micro_batches = kNumHalves;
      const CheckedDeployment split = deployment_of(small, mesh);
      if (is_skipped(split)) continue;
      const std::vector<CheckedStep> halves = in_halves(steps, mesh.dp);
      for (const LaunchMode mode : {LaunchMode::kEager, LaunchMode::kGraph}) {
        const bool is_graph = mode == LaunchMode::kGraph;
        const std::string what = split.name + (is_graph ? " graph of 8 rows" : " eager");
        guarded(what, [&] {
          const auto found = run_conversation(
              split, halves, {.decode_mode = mode, .decode_rows = is_graph ? 8 : 4});
          report(what + " against one GPU", found, expected_of(one_gpu), bound);
        });
      }
      guarded(split.name, [&] {
        report(split.name + " by NCCL alone against one GPU",
               run_conversation(split, halves, {.only_nccl = true}), expected_of(one_gpu), bound);
      });
    }
  }

  // Decode steps as one kernel; of 8 rows, half of which hold no sequence.
  template <typename Run>
  void check_megakernel(const CheckedDeployment& single, const Run& run, double bound) {
    guarded(single.name + " megakernel", [&] {
      report(single.name + " megakernel", run(single, {.decode_mode = LaunchMode::kMegakernel}),
             reference_, bound);
      report(single.name + " megakernel of 8 rows",
             run(single, {.decode_mode = LaunchMode::kMegakernel, .decode_rows = 8}), reference_,
             bound);
    });
  }

  // The weights of the last of four tensor-parallel ranks, on the second of two stages.
  void check_weights(const SmallModel& small) {
    const Mesh mesh{.tp = 4, .pp = 2};
    const CheckedDeployment split = deployment_of(small, mesh);
    const StepPlans plans = split.lower({.prefill = {{.tokens = {1}}}}, 0);
    const int last = split.grid.size() - 1;
    const WeightShards shards = weight_shards(plans.plan, last);
    std::int64_t different = 0;
    for (std::size_t i = 0; i < plans.plan.tensors().size(); ++i) {
      if (shards.tensor_shard[i] < 0) continue;
      const WeightShard& shard = shards.shards[static_cast<std::size_t>(shards.tensor_shard[i])];
      different += num_different_elements(shard, shard.num_copies - 1,
                                          plans.plan.tensors()[i].dtype, split.seed);
    }
    count(different == 0);
    std::printf("%s %s weights  %lld elements other than on the host\n",
                last_passed_ ? "ok  " : "FAIL", split.name.c_str(),
                static_cast<long long>(different));
  }

  // Each collective of a plan left out, or behind the op that needs it: the logits must tell.
  void check_wrong_collectives(const SmallModel& small, const Mesh& mesh) {
    const CheckedDeployment split = deployment_of(small, mesh);
    if (is_skipped(split)) return;
    const std::vector<CheckedStep> steps = reference_conversation(deployment_of(small, {}), 0);
    check_wrong_collectives(split, std::span(steps).first(1));
  }
  void check_wrong_collectives(const CheckedDeployment& split, std::span<const CheckedStep> some) {
    const std::vector<CheckedStep> steps(some.begin(), some.end());
    Expected expected;
    for (const CheckedStep& step : steps) {
      expected.logits.push_back(step.logits);
      expected.tokens.push_back(step.next_tokens);
    }
    const StepInput& first = steps[0].input;
    const Plan plan = split.lower(first, std::ssize(first.decodes)).plan;
    const double bound = kBf16LogitBound;
    for (const std::string& name : collective_names(plan)) {
      for (const Mistake& mistake : kMistakes) {
        const std::string what =
            split.name + " with " + name + " " + std::string(mistake.description);
        guarded(what, [&] {
          const auto change = [&](const Plan& right) { return mistake.make(right, name); };
          const auto found = run_conversation(split, steps, {.change = change});
          const ConversationDifference difference =
              compare_conversations(found, expected.logits, expected.tokens, bound);
          count(difference.logits > bound || difference.wrong_tokens > 0);
          std::printf("%s %s  noticed: logits %.2e (> %.1e), %d of %d tokens wrong\n",
                      last_passed_ ? "ok  " : "FAIL", what.c_str(), difference.logits, bound,
                      difference.wrong_tokens, difference.num_tokens);
          std::fflush(stdout);
        });
      }
    }
  }

  [[nodiscard]] CheckCount result() const { return count_; }

 private:
  struct Expected {
    std::vector<std::vector<double>> logits;
    std::vector<std::vector<std::int32_t>> tokens;
  };

  static Expected expected_of(const ExecutedConversation& conversation) {
    Expected expected{.logits = {}, .tokens = conversation.next_tokens};
    for (const std::vector<float>& logits : conversation.logits) {
      expected.logits.emplace_back(logits.begin(), logits.end());
    }
    return expected;
  }

  void count(bool passes) {
    last_passed_ = passes;
    ++(passes ? count_.passed : count_.failed);
  }

  bool is_skipped(const CheckedDeployment& deployment) const {
    if (deployment.grid.size() <= num_gpus_) return false;
    std::printf("skip %s: needs %d GPUs, %d here\n", deployment.name.c_str(),
                deployment.grid.size(), num_gpus_);
    return true;
  }

  // What a case throws fails that case alone.
  template <typename Run>
  void guarded(const std::string& what, const Run& run) {
    try {
      run();
    } catch (const std::exception& error) {
      count(false);
      std::printf("FAIL %s: %s\n", what.c_str(), error.what());
      std::fflush(stdout);
    }
  }

  void report(const std::string& what, const ExecutedConversation& found, const Expected& expected,
              double bound) {
    const ConversationDifference difference =
        compare_conversations(found, expected.logits, expected.tokens, bound);
    count(difference.logits <= bound && difference.wrong_tokens == 0);
    const int equal = difference.num_tokens - difference.wrong_tokens - difference.near_ties;
    std::printf("%s %s  logits %.2e (<= %.1e)  tokens %d of %d equal, %d near ties\n",
                last_passed_ ? "ok  " : "FAIL", what.c_str(), difference.logits, bound, equal,
                difference.num_tokens, difference.near_ties);
    std::fflush(stdout);
  }

  int num_gpus_;
  Expected reference_;
  CheckCount count_;
  bool last_passed_ = false;
};

}  // namespace

CheckCount check_execute() {
  ExecuteCheck check(cuda::device_count());
  const auto dealt = [](int cp) {
    return Mesh{.cp = cp, .cp_weights = CpWeights::kReplicated, .cp_decodes = CpDecodes::kDealt};
  };
  const std::vector<Mesh> all_meshes{
      {.tp = 2},
      {.pp = 2},
      {.dp = 2},
      {.dp = 2, .dp_rows = DpRows::kBalanced},
      {.tp = 2, .sp = true},
      {.tp = 2, .o_proj = OProjection::kReplicated},
      {.tp = 2, .lm_head = LmHead::kReplicated},
      {.tp = 2, .split_all_reduce = true},
      {.dp = 2, .o_proj = OProjection::kSharded},
      {.dp = 2, .lm_head = LmHead::kJoined},
      {.pp = 2, .num_micro_batches = 2},
      {.ffn_instances = 1},
      {.num_micro_batches = 2, .ffn_instances = 1},
      {.num_micro_batches = 3, .ffn_instances = 1},
      {.num_micro_batches = 3, .ffn_instances = 1, .ffn_schedule = FfnSchedule::kLock},
      {.cp = 2},
      {.cp = 2, .cp_weights = CpWeights::kReplicated},
      {.cp = 2, .cp_prefill = CpPrefill::kRing},
      {.cp = 2, .cp_weights = CpWeights::kReplicated, .cp_prefill = CpPrefill::kRing},
      dealt(2),
      {.num_micro_batches = 2, .ffn_instances = 1, .ffn_tp = 2},
      {.tp = 4},
      {.tp = 2, .pp = 2},
      {.dp = 2, .tp = 2, .dp_rows = DpRows::kBalanced},
      {.dp = 2, .pp = 2, .dp_rows = DpRows::kBalanced},
      {.tp = 2, .cp = 2},
      {.tp = 2, .cp = 2, .cp_weights = CpWeights::kReplicated},
      {.cp = 4},
      {.cp = 4, .cp_weights = CpWeights::kReplicated},
      {.cp = 4, .cp_weights = CpWeights::kReplicated, .cp_prefill = CpPrefill::kRing},
      dealt(4)};
  const std::vector<Mesh> tensor_parallel{{.tp = 2}};
  const std::vector<Mesh> fp8_meshes{{.tp = 2},
                                     {.dp = 2, .dp_rows = DpRows::kBalanced},
                                     {.cp = 2, .cp_weights = CpWeights::kReplicated},
                                     {.ffn_instances = 1},
                                     {.num_micro_batches = 3, .ffn_instances = 1}};
  const SmallModel small{.head_dim = 64, .dtype = DType::kBf16};
  check.check_weights(small);
  check.check_weights({.head_dim = 64, .dtype = DType::kFp8});
  check.check_model(small, all_meshes);
  check.check_model({.head_dim = 128, .dtype = DType::kBf16}, tensor_parallel);
  check.check_model({.type = "qwen3", .head_dim = 128, .dtype = DType::kBf16}, tensor_parallel);
  check.check_model({.type = "qwen2", .head_dim = 128, .dtype = DType::kBf16}, tensor_parallel);
  check.check_model({.type = "qwen2", .head_dim = 128, .dtype = DType::kFp8}, tensor_parallel);
  check.check_model({.head_dim = 64, .dtype = DType::kFp8}, fp8_meshes);
  check.check_model({.head_dim = 128, .dtype = DType::kFp8}, {});
  for (const Mesh& mesh : {Mesh{.tp = 2}, Mesh{.tp = 2, .sp = true}, Mesh{.pp = 2},
                           Mesh{.dp = 2, .dp_rows = DpRows::kBalanced}, Mesh{.ffn_instances = 1},
                           Mesh{.cp = 2}, Mesh{.cp = 2, .cp_weights = CpWeights::kReplicated},
                           Mesh{.cp = 2, .cp_prefill = CpPrefill::kRing}, dealt(2)}) {
    check.check_wrong_collectives(small, mesh);
  }
  const std::vector<Mesh> parts_of_context{
      {.cp = 2}, {.cp = 2, .cp_weights = CpWeights::kReplicated}, dealt(2), {.tp = 2, .cp = 2}};
  check.check_decodes_alone(small, parts_of_context);
  check.check_decodes_alone({.head_dim = 128, .dtype = DType::kBf16},
                            std::span(parts_of_context).first(1));
  const std::vector<Mesh> apart{{.dp = 2, .num_micro_batches = 2, .ffn_instances = 1},
                                {.dp = 2, .num_micro_batches = 2, .ffn_instances = 1, .ffn_tp = 2},
                                {.dp = 3, .num_micro_batches = 2, .ffn_instances = 1},
                                {.num_micro_batches = 2, .ffn_instances = 1, .ffn_tp = 3}};
  // Columns that three ranks divide.
  check.check_decodes_alone({.head_dim = 64, .dtype = DType::kBf16, .ffn = 1536}, apart);
  return check.result();
}

}  // namespace orrery::tool
