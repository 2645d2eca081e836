// orrery-gpu check moe: steps of small mixtures of experts and layers by themselves, in all
// designs.

#include <cmath>
#include <cstdio>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/devices.h"
#include "kernels/execute/check.h"
#include "kernels/execute/kernel_trace.h"
#include "kernels/execute/rank_program.h"
#include "kernels/execute/reference/model.h"
#include "kernels/execute/spoil.h"
#include "kernels/tool/checks.h"
#include "kernels/tool/executor_setup.h"
#include "kernels/tool/layer_row.h"
#include "kernels/tool/moe_run.h"
#include "sim/model/model.h"
#include "sim/parallel/parallel.h"

namespace orrery::tool {
namespace {

constexpr int kNumDecodeSteps = 3;

// Logits as in check_execute.cpp: experts are chosen by the scores that the GPU found, so what is
// left is rounding. Scores differ by the rounding of their inputs.
struct Bounds {
  double logits = 2.5e-2;
  double scores = 3e-2;
  double layer = 1.5e-2;  // of a layer by itself, of the largest output
};
Bounds bounds_of(DType dtype) {
  if (dtype != DType::kFp8) return {};
  return {.logits = 2e-1, .scores = 1.5e-1, .layer = 8e-2};
}

enum class SmallMoe : std::uint8_t { kQwen3, kLlama4, kDeepseek };

// 2 layers of attention with grouped heads and 16 experts: softmax of 8, normalised; sigmoid of the
// best, which weighs its inputs, with a shared expert; sigmoid of 4 from 2 of 4 groups, with a bias
// for the choice, normalised, scaled, with shared experts.
ModelConfig model_of(SmallMoe kind) {
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
  int streams = 1;
  bool fuses_scatter = false;
  Mesh mesh;
};

std::string describe(const Mesh& mesh) {
  std::string text;
  const auto add = [&](const char* name, int ways) {
    if (ways > 1) text.append(" ").append(name).append(" ").append(std::to_string(ways));
  };
  add("tp", mesh.tp);
  add("dp", mesh.dp);
  add("ep", mesh.ep);
  return text;
}

std::string describe(const MoeStep& step) {
  constexpr const char* kNames[] = {"qwen3", "llama4", "deepseek"};
  std::string text = "moe " + std::string(kNames[static_cast<int>(step.kind)]) + " " +
                     std::string(to_text(step.design)) + " " + std::string(to_text(step.dtype));
  if (step.streams > 1) text += " streams " + std::to_string(step.streams);
  if (step.fuses_scatter) text += " fused scatter";
  return text + describe(step.mesh);
}

Batch batch_of(const StepInput& input, std::int64_t num_decodes) {
  Batch batch{.prefill = {}, .num_decodes = num_decodes, .decode_context = 0};
  for (const SequenceTokens& chunk : input.prefill) {
    batch.prefill.push_back({.query = std::ssize(chunk.tokens),
                             .context = chunk.context,
                             .produces_token = chunk.produces_token});
  }
  for (const SequenceTokens& decode : input.decodes) batch.decode_context += decode.context + 1;
  batch.decode_context += num_decodes - std::ssize(input.decodes);
  return batch;
}

CheckedDeployment deployment_of(const MoeStep& step) {
  const ModelConfig model = model_of(step.kind);
  LoweringOptions options;
  options.precision.weights = options.precision.activations = step.dtype;
  options.moe_design = step.design;
  options.moe_streams = step.streams;
  options.fuse_scatter_add = step.fuses_scatter;
  const Mesh mesh = step.mesh;
  return {
      .name = describe(step),
      .grid = {.tp = mesh.tp, .dp = mesh.dp},
      .numbers = {.head_dim = model.head_dim, .max_positions = 512, .routing = routing_of(model)},
      .vocab = model.vocab_size,
      .lower = [=](const StepInput& input, std::int64_t num_decodes) {
        StepPlans plans{.whole = lower(model, batch_of(input, num_decodes), options)};
        plans.plan = parallelize(plans.whole, mesh);
        return plans;
      }};
}

bool waits_for_counts(const Plan& plan) { return !host_waits(plan, 0).empty(); }

class MoeCheck {
 public:
  explicit MoeCheck(int num_gpus) : num_gpus_(num_gpus) {}

  // A conversation eagerly and, where no host waits, as graphs with more rows than decodes.
  void check_steps(const MoeStep& step) {
    if (is_skipped(describe(step), step.mesh)) return;
    MoeStep plain = step;
    plain.mesh = {};
    plain.design = MoeDesign::kShuffling;
    plain.streams = 1;
    plain.fuses_scatter = false;
    const auto steps = std::make_shared<const std::vector<CheckedStep>>(
        reference_conversation(deployment_of(plain), kNumDecodeSteps));
    const CheckedDeployment deployment = deployment_of(step);
    check_conversation(deployment, steps, {.records_scores = true}, " eager", step.dtype);
    const StepPlans plans = deployment.lower(steps->front().input, 0);
    const ConversationOptions graph{
        .decode_mode = ExecuteMode::kGraph, .decode_rows = 8, .records_scores = true};
    if (!waits_for_counts(plans.plan)) {
      check_conversation(deployment, steps, graph, " graph of 8 rows", step.dtype);
      return;
    }
    check_refused(deployment.name + " graph",
                  [&] { static_cast<void>(run_conversation(deployment, *steps, graph)); });
  }

  // Layers by themselves, one executor for all that share weights.
  void check_layers(const std::vector<std::string>& lines) {
    std::unique_ptr<Executor> executor;
    for (const std::string& line : lines) {
      const MoeCase one = parse_moe_case(line);
      if (is_skipped("moe layer " + line, one.mesh)) continue;
      guarded("moe layer " + line, [&] {
        const Plan whole = moe_plan(one);
        const Plan plan = parallelize(whole, one.mesh);
        if (!executor) executor = std::make_unique<Executor>(layer_setup(one, plan, whole));
        check_layer(*executor, one, plan, whole);
      });
    }
  }

  // Each collective of rows left out, or behind the op that needs it: y must tell.
  void check_wrong_collectives(const std::string& line) {
    const MoeCase one = parse_moe_case(line);
    if (is_skipped("moe layer " + line, one.mesh)) return;
    const Plan whole = moe_plan(one);
    const Plan plan = parallelize(whole, one.mesh);
    const std::vector<float> expected = reference_output(one, plan, whole);
    for (const std::string& name : collective_names(plan)) {
      const std::string what = "moe layer " + line + " without " + name;
      guarded(what, [&] {
        Executor executor(layer_setup(one, plan, whole));
        const double apart =
            layer_difference(run_layer(executor, one, without_op(plan, name)), expected);
        const double bound = bounds_of(one.dtype).layer;
        count(apart > bound);
        std::printf("%s %s  noticed: %.2e (> %.1e)\n", verdict(), what.c_str(), apart, bound);
      });
    }
  }

  // Spans of two streams lie over each other, and the result stays.
  void check_overlap(const std::string& line) {
    const std::string what = "moe layer " + line + " overlap";
    if (const std::string problem = kernel_trace_problem(); !problem.empty()) {
      std::printf("skip %s: %s\n", what.c_str(), problem.c_str());
      return;
    }
    guarded(what, [&] {
      const MoeCase one = parse_moe_case(line);
      const Plan plan = moe_plan(one);
      Executor executor(layer_setup(one, plan, plan));
      const auto step = prepared_layer(executor, one, plan);
      const LayerSpans spans = layer_spans(plan, executor.trace(*step, {}), 0);
      count(spans.overlap > Seconds(0));
      std::printf("%s %s  %.1f of %.1f us on two streams\n", verdict(), what.c_str(),
                  spans.overlap.value() * 1e6, spans.busy.value() * 1e6);
    });
  }

  // A NaN in the input is found where it first shows: in the router's scores.
  void check_nan(const std::string& line) {
    const std::string what = "moe layer " + line + " NaN in the input";
    guarded(what, [&] {
      const MoeCase one = parse_moe_case(line);
      const Plan plan = moe_plan(one);
      Executor executor(layer_setup(one, plan, plan));
      const auto step = prepared_layer(executor, one, plan);
      auto x = layer_inputs(one, plan, 0).at("x");
      x[x.size() / 2] = NAN;
      executor.give(*step, 0, "x", x);
      static_cast<void>(executor.run(*step, {}));
      std::string message = "nothing";
      try {
        executor.check_finite(*step, {});
      } catch (const std::exception& error) {
        message = error.what();
      }
      count(message.find("\"router\"") != std::string::npos);
      std::printf("%s %s  said: %s\n", verdict(), what.c_str(), message.c_str());
    });
  }

  // What one d2h_sync op reads must be read before it is used.
  void check_missing_sync(const std::string& line) {
    const MoeCase one = parse_moe_case(line);
    const Plan plan = moe_plan(one);
    check_refused("moe layer " + line + " without its sync", [&] {
      Executor executor(layer_setup(one, plan, plan));
      static_cast<void>(run_layer(executor, one, without_op(plan, "sync")));
    });
  }

  // References run meanwhile; their lines come here.
  void finish() {
    for (auto& pending : pending_) pending.get()();
    pending_.clear();
  }

  [[nodiscard]] CheckCount result() const { return count_; }

 private:
  using Report = std::function<void()>;

  void count(bool passes) {
    last_passed_ = passes;
    ++(passes ? count_.passed : count_.failed);
  }
  [[nodiscard]] const char* verdict() const { return last_passed_ ? "ok  " : "FAIL"; }

  bool is_skipped(const std::string& what, const Mesh& mesh) const {
    if (num_ranks(mesh) <= num_gpus_) return false;
    std::printf("skip %s: needs %d GPUs, %d here\n", what.c_str(), num_ranks(mesh), num_gpus_);
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
    }
    std::fflush(stdout);
  }

  // That it is refused as bad input.
  template <typename Run>
  void check_refused(const std::string& what, const Run& run) {
    guarded(what, [&] {
      std::string message;
      try {
        run();
      } catch (const std::invalid_argument& error) {
        message = error.what();
      }
      count(!message.empty());
      std::printf("%s %s  refused: %s\n", verdict(), what.c_str(), message.c_str());
    });
  }

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
    const Bounds bounds = bounds_of(dtype);
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

  static std::vector<float> run_layer(Executor& executor, const MoeCase& one, const Plan& plan) {
    const auto step = prepared_layer(executor, one, plan);
    static_cast<void>(executor.run(*step, {}));
    return layer_output(one, [&](int rank) { return executor.take(*step, rank, kLayerOutput); });
  }

  static std::vector<float> reference_output(const MoeCase& one, const Plan& plan,
                                             const Plan& whole) {
    const ExecutorSetup setup = layer_setup(one, plan, whole);
    reference::Model model({.whole = whole,
                            .grid = setup.grid,
                            .numbers = setup.numbers,
                            .seed = setup.seed,
                            .rounding = reference::Rounding::kStored});
    reference::LayerTensors inputs(static_cast<std::size_t>(setup.grid.size()));
    for (int rank = 0; rank < setup.grid.size(); ++rank) {
      for (const auto& [name, values] : layer_inputs(one, plan, rank)) {
        inputs[static_cast<std::size_t>(rank)][name].assign(values.begin(), values.end());
      }
    }
    reference::LayerTensors outputs = model.run_layer(plan, inputs);
    return layer_output(one, [&](int rank) {
      return outputs[static_cast<std::size_t>(rank)].at(chained_output(1));
    });
  }

  void check_layer(Executor& executor, const MoeCase& one, const Plan& plan, const Plan& whole) {
    const std::string what = "moe layer " + one.text;
    if (one.is_graph && waits_for_counts(plan)) {
      check_refused(what, [&] { static_cast<void>(run_layer(executor, one, plan)); });
      return;
    }
    const double apart =
        layer_difference(run_layer(executor, one, plan), reference_output(one, plan, whole));
    const double bound = bounds_of(one.dtype).layer;
    count(apart <= bound);
    std::printf("%s %s  %.2e (<= %.1e)\n", verdict(), what.c_str(), apart, bound);
  }

  int num_gpus_;
  CheckCount count_;
  bool last_passed_ = false;
  std::vector<std::future<Report>> pending_;
};

// All designs of a model's layer, with as many tokens as fill no tile, one and several.
std::vector<std::string> layer_lines(const std::string& model, const std::string& format) {
  const bool has_shared = moe_model(model).shared_expert_intermediate_size > 0;
  std::vector<std::string> designs{
      "design=shuffling",          "design=shuffling mode=eager load=zipf:1", "design=padding",
      "design=slicing mode=eager", "design=concatenation mode=eager",         "design=slicing"};
  if (has_shared) {
    designs.insert(designs.end(), {"design=shuffling streams=2", "design=shuffling fuse=1",
                                   "design=shuffling streams=2 fuse=1 load=uniform",
                                   "design=concatenation mode=eager streams=2"});
  }
  std::vector<std::string> lines;
  for (const char* tokens : {"257", "67", "7", "1"}) {
    for (const std::string& design : designs) {
      lines.push_back(model + " tokens=" + tokens + " " + format + " " + design);
    }
  }
  return lines;
}

void check_one_gpu(MoeCheck& check) {
  for (const char* model : {"tiny_qwen3", "tiny_llama4", "tiny_deepseek"}) {
    check.check_layers(layer_lines(model, "dtype=bf16"));
    check.check_layers(layer_lines(model, "dtype=fp8"));
  }
  check.check_nan("tiny_llama4 tokens=33 mode=eager");
  check.check_missing_sync("tiny_qwen3 tokens=33 mode=eager design=slicing");
  check.check_missing_sync("tiny_qwen3 tokens=33 mode=eager design=concatenation");
  using enum MoeDesign;
  for (const SmallMoe kind : {SmallMoe::kQwen3, SmallMoe::kLlama4, SmallMoe::kDeepseek}) {
    for (const MoeDesign design : {kShuffling, kPadding, kSlicing, kConcatenation}) {
      check.check_steps({.kind = kind, .design = design});
    }
    check.check_steps({.kind = kind, .dtype = DType::kFp8});
  }
  check.check_steps({.kind = SmallMoe::kLlama4, .streams = 2});
  check.check_steps({.kind = SmallMoe::kLlama4, .streams = 2, .fuses_scatter = true});
}

void check_two_gpus(MoeCheck& check) {
  const std::vector<Mesh> meshes{{.tp = 2}, {.tp = 2, .ep = 2}};
  for (const Mesh& mesh : meshes) {
    const std::string text = "tp=2 ep=" + std::to_string(mesh.ep);
    for (const char* model : {"tiny_qwen3", "tiny_llama4", "tiny_deepseek"}) {
      const std::string line = std::string(model) + " tokens=67 " + text;
      check.check_layers({line, line + " mode=eager", line + " design=padding",
                          line + " design=slicing mode=eager",
                          line + " design=concatenation mode=eager"});
    }
    check.check_wrong_collectives("tiny_deepseek tokens=67 " + text);
    for (const SmallMoe kind : {SmallMoe::kQwen3, SmallMoe::kLlama4, SmallMoe::kDeepseek}) {
      check.check_steps({.kind = kind, .mesh = mesh});
    }
  }
}

}  // namespace

CheckCount check_moe() {
  MoeCheck check(cuda::device_count());
  check_one_gpu(check);
  check_two_gpus(check);
  check.finish();
  // Last: recording slows what comes after it.
  check.check_overlap("scout_tp8 tokens=64 streams=2");
  return check.result();
}

}  // namespace orrery::tool
