// Layers to time by themselves: what lines say, what routing they impose, and what their rows say.

#include "kernels/tool/moe_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/execute/hazards.h"
#include "kernels/execute/rank_program.h"
#include "kernels/tool/layer_row.h"
#include "kernels/tool/moe_delays.h"
#include "sim/cost/moe_stragglers.h"
#include "sim/memory/buffers.h"
#include "sim/parallel/parallel.h"

namespace orrery::tool {
namespace {

TEST(MoeCases, ALineSaysWhatDiffersFromTheDefaults) {
  const MoeCase one = parse_moe_case("qwen3_30b  tokens=128 dp=2 ep=2 comm=graph load=zipf:1.5");
  EXPECT_EQ(one.text, "qwen3_30b tokens=128 dp=2 ep=2 comm=graph load=zipf:1.5");
  EXPECT_EQ(one.tokens, 128);
  EXPECT_EQ(num_ranks(one.mesh), 2);
  EXPECT_EQ(one.mesh.expert_comm, ExpertComm::kGraph);
  EXPECT_EQ(one.design, MoeDesign::kShuffling);
  EXPECT_EQ(one.mode, LaunchMode::kGraph);
}

TEST(MoeCases, ChunksAreOfTheMesh) {
  const MoeCase one = parse_moe_case("qwen3_30b tokens=128 dp=2 ep=2 comm=graph chunks=3");
  EXPECT_EQ(one.mesh.moe_chunks, 3);
  const std::vector<LayerRow> rows{row_of(one, 0)};
  EXPECT_NE(to_csv(rows).find(",graph,3,2,"), std::string::npos);
}

TEST(MoeCases, RowsMayBeCopied) {
  const MoeCase one =
      parse_moe_case("qwen3_30b tokens=128 dp=2 ep=2 comm=copies mode=eager chunks=2");
  EXPECT_EQ(one.mesh.expert_comm, ExpertComm::kCopies);
  EXPECT_EQ(host_waits(parallelize(moe_plan(one), one.mesh), 0).size(), 1U);
  EXPECT_NE(to_csv(std::vector<LayerRow>{row_of(one, 0)}).find(",copies,2,2,"), std::string::npos);
}

TEST(MoeCases, TheFirstGroupedGemmMayGather) {
  const MoeCase one = parse_moe_case("glm_45_air tokens=8192 fuse=1 gather=1");
  EXPECT_TRUE(moe_lowering(one).fuse_gather);
  const Plan plan = moe_plan(one);
  const auto has = [&](std::string_view name) {
    return std::ranges::any_of(plan.ops(), [&](const Op& op) {
      const auto* kernel = std::get_if<KernelOp>(&op.body);
      return kernel != nullptr && kernel->kernel == name;
    });
  };
  EXPECT_TRUE(has("grouped_gemm_gather"));
  EXPECT_FALSE(has("gather_mul"));
  EXPECT_NE(to_csv(std::vector<LayerRow>{row_of(one, 0)}).find(",1,1,1,1,1,1,,1,1,"),
            std::string::npos);
  EXPECT_THROW(static_cast<void>(moe_plan(parse_moe_case("qwen3_30b dtype=fp8 gather=1"))),
               std::invalid_argument);
}

TEST(MoeCases, ACapacityIsOfTheOneKernel) {
  const MoeCase one = parse_moe_case("qwen3_30b tokens=128 design=persistent capacity=125");
  EXPECT_EQ(moe_lowering(one).capacity_percent, 125);
  EXPECT_NO_THROW(static_cast<void>(moe_plan(one)));
  EXPECT_THROW(static_cast<void>(moe_plan(parse_moe_case("qwen3_30b tokens=128 capacity=125"))),
               std::invalid_argument);
}

// The kernel makes its scores itself: it takes a load as a bias on the router's logits, and so do
// the designs that it is compared with where they are to route alike.
TEST(MoeCases, ALoadOfTheOneKernelIsABiasOnTheRouter) {
  const std::string layer = "qwen3_30b tokens=128 dp=2 ep=2 load=zipf:1 ";
  const auto has_imposed_scores = [](const MoeCase& one) {
    const Plan plan = parallelize(moe_plan(one), one.mesh);
    return std::ranges::any_of(
        plan.tensors(), [](const Tensor& tensor) { return tensor.name == "imposed_scores"; });
  };
  const MoeCase kernel = parse_moe_case(layer + "design=persistent");
  EXPECT_TRUE(imposes_bias(kernel));
  EXPECT_FALSE(has_imposed_scores(kernel));
  // Its scores, by which rows are counted, under the name of the last layer of a chain.
  const Plan chain = chained(parallelize(moe_plan(kernel), kernel.mesh), 3);
  EXPECT_EQ(std::ranges::count(chain.tensors(), chained_name("router", 3), &Tensor::name), 1);
  EXPECT_EQ(std::ranges::count(chain.tensors(), chained_output(3), &Tensor::name), 1);
  const MoeCase alike = parse_moe_case(layer + "comm=graph impose=bias");
  EXPECT_TRUE(imposes_bias(alike));
  EXPECT_FALSE(has_imposed_scores(alike));
  EXPECT_EQ(alike.mesh.expert_load.shares, kernel.mesh.expert_load.shares);
  EXPECT_EQ(row_of(alike, 0).at("impose"), "bias");
  const MoeCase scores = parse_moe_case(layer + "comm=graph");
  EXPECT_FALSE(imposes_bias(scores));
  EXPECT_TRUE(has_imposed_scores(scores));
  EXPECT_EQ(row_of(scores, 0).at("impose"), "scores");
  EXPECT_EQ(row_of(parse_moe_case("qwen3_30b"), 0).at("impose"), "");
  EXPECT_THROW(
      static_cast<void>(moe_plan(parse_moe_case(layer + "design=persistent impose=scores"))),
      std::invalid_argument);
  EXPECT_THROW(static_cast<void>(parse_moe_case("qwen3_30b impose=bias")), std::invalid_argument);
}

// As their configs in models/ say.
TEST(MoeCases, ModelsAreRoutedAsTheirConfigsSay) {
  const ModelConfig v3 = moe_model("deepseek_v3");
  EXPECT_EQ(v3.scoring_func, ScoringFunc::kSigmoid);
  EXPECT_TRUE(v3.has_correction_bias && v3.norm_topk_prob);
  EXPECT_EQ(std::pair(v3.n_group, v3.topk_group), std::pair(std::int64_t{8}, std::int64_t{4}));
  EXPECT_EQ(v3.routed_scaling_factor, 2.5);
  const ModelConfig lite = moe_model("deepseek_v2_lite");
  EXPECT_EQ(lite.scoring_func, ScoringFunc::kSoftmax);
  EXPECT_FALSE(lite.norm_topk_prob || lite.router_bias);
  EXPECT_EQ(lite.shared_expert_intermediate_size, 2 * 1408);
  const ModelConfig scout = moe_model("scout_tp8");
  EXPECT_TRUE(scout.weighs_expert_inputs && !scout.norm_topk_prob);
  EXPECT_EQ(scout.num_experts_per_tok, 1);
  EXPECT_EQ(scout.moe_intermediate_size, 8192 / 8);
  EXPECT_EQ(scout.shared_expert_intermediate_size, 8192 / 8);
  EXPECT_TRUE(moe_model("mixtral_8x7b").norm_topk_prob);
  EXPECT_TRUE(moe_model("tiny_qwen3").norm_topk_prob);
  EXPECT_EQ(moe_model("tiny_deepseek").routed_scaling_factor, 2.5);
}

TEST(MoeCases, AnUnknownWordIsAnErrorThatNamesTheNearest) {
  const auto message = [](const std::string& line) {
    try {
      static_cast<void>(parse_moe_case(line));
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(message("scuot").find("scout"), std::string::npos);
  EXPECT_NE(message("scout desing=padding").find("design"), std::string::npos);
  EXPECT_NE(message("scout comm=grahp").find("graph"), std::string::npos);
  for (const char* chunks : {"0", "-1", "1.5", "two", ""}) {
    EXPECT_NE(message("scout dp=2 ep=2 comm=eager chunks=" + std::string(chunks))
                  .find("expected a whole number from 1"),
              std::string::npos)
        << chunks;
  }
  EXPECT_NE(message("scout dp=2 ep=2 comm=eager chunks=65").find("1 to 64"), std::string::npos);
  EXPECT_NE(message("scout chunks=2").find("with dp 1"), std::string::npos);
  EXPECT_NE(message("scout dp=2 ep=2 chunks=2").find("eager, graph or copies"), std::string::npos);
  EXPECT_NE(message("scout load=zipf").find("zipf:S"), std::string::npos);
  EXPECT_NE(message("scout tokens=0").find("expected a whole number from 1"), std::string::npos);
}

// Each token's largest score is that of an expert drawn by its share: over 4,000 tokens, experts of
// equal shares 1/16 are chosen 250 times each, with a standard deviation of 15.
std::vector<int> times_chosen(const MoeCase& one, std::int64_t experts) {
  const std::vector<float> scores = imposed_scores(one, experts);
  std::vector<int> times(static_cast<std::size_t>(experts));
  for (auto token = scores.begin(); token != scores.end(); token += experts) {
    ++times[static_cast<std::size_t>(std::max_element(token, token + experts) - token)];
  }
  return times;
}

TEST(MoeCases, UniformScoresChooseAllExpertsAlike) {
  for (const int times : times_chosen(parse_moe_case("scout tokens=4000 load=uniform"), 16)) {
    EXPECT_NEAR(times, 250, 5 * 15);
  }
}

// Shares 1/k over the sum of 1/k to 16, 3.381: the busiest gets 4000 / 3.381 = 1183, with a
// standard deviation of 29, the least 74, with one of 9.
TEST(MoeCases, ZipfScoresChooseByRank) {
  std::vector<int> times = times_chosen(parse_moe_case("scout tokens=4000 load=zipf:1"), 16);
  std::ranges::sort(times);
  EXPECT_NEAR(times.back(), 1183, 5 * 29);
  EXPECT_NEAR(times.front(), 74, 5 * 9);
}

TEST(MoeCases, ScoresAndInputsAreThoseOfTheSeed) {
  const MoeCase a = parse_moe_case("tiny_qwen3 tokens=9 load=uniform seed=1");
  const MoeCase b = parse_moe_case("tiny_qwen3 tokens=9 load=uniform seed=2");
  EXPECT_EQ(imposed_scores(a, 16), imposed_scores(a, 16));
  EXPECT_NE(imposed_scores(a, 16), imposed_scores(b, 16));
  EXPECT_NE(layer_input(a, 256), layer_input(b, 256));
}

TEST(MoeCases, ARankMayComeLateOnPurpose) {
  const MoeCase one = parse_moe_case("qwen3_30b tokens=128 dp=2 ep=2 comm=graph late=50:20");
  EXPECT_DOUBLE_EQ(one.late.value(), 50e-6);
  EXPECT_DOUBLE_EQ(one.late_results.value(), 20e-6);
  EXPECT_THROW(static_cast<void>(parse_moe_case("qwen3_30b late=50")), std::invalid_argument);
  for (const char* wrong : {"late=-1", "late=1.5", "late=50:", "late=2000000", "jitter=vm",
                            "late=5 jitter=mars", "late=5 who=me"}) {
    EXPECT_THROW(static_cast<void>(parse_moe_case("qwen3_30b dp=2 ep=2 " + std::string(wrong))),
                 std::invalid_argument)
        << wrong;
  }
}

Plan layer_of(const MoeCase& one) { return parallelize(moe_plan(one), one.mesh); }

TEST(MoeDelays, AreBeforeTheFirstOpAndBeforeResultsComeBack) {
  const MoeCase one = parse_moe_case("tiny_qwen3 tokens=8 dp=2 ep=2 comm=graph late=50:20");
  const MoeDelays delays = layer_delays(one, layer_of(one), 3);
  ASSERT_EQ(delays.before.size(), 6U);
  for (int layer = 0; layer < 3; ++layer) {
    const std::string copy = "#" + std::to_string(layer);
    EXPECT_DOUBLE_EQ(delays.before.at({1, "router" + copy}).value(), 50e-6);
    EXPECT_DOUBLE_EQ(delays.before.at({1, "return.all_to_all" + copy}).value(), 20e-6);
  }
  EXPECT_NEAR(delays.at_begin.value(), 50e-6, 1e-15);
  EXPECT_NEAR(delays.at_results.value(), 20e-6, 1e-15);
  // One kernel brings results back by itself.
  const MoeCase kernel = parse_moe_case("tiny_qwen3 tokens=8 design=persistent dp=2 ep=2 late=5:5");
  EXPECT_THROW(static_cast<void>(layer_delays(kernel, layer_of(kernel), 1)), std::invalid_argument);
}

TEST(MoeDelays, OfAllRanksAreAlike) {
  const MoeCase one = parse_moe_case("tiny_qwen3 tokens=8 dp=2 ep=2 comm=graph late=50 who=all");
  const MoeDelays delays = layer_delays(one, layer_of(one), 1);
  EXPECT_DOUBLE_EQ(delays.before.at({0, "router"}).value(), 50e-6);
  EXPECT_DOUBLE_EQ(delays.before.at({1, "router"}).value(), 50e-6);
  EXPECT_NEAR(delays.at_begin.value(), 50e-6, 1e-15);
}

// A delay of its own in each layer, of one rank: those of the distribution at so many quantiles.
TEST(MoeDelays, WithAJitterAreThoseThatArePublished) {
  const MoeCase one =
      parse_moe_case("tiny_qwen3 tokens=8 dp=2 ep=2 comm=graph late=100 jitter=vm seed=3");
  constexpr int kSets = 8;
  const MoeDelays delays = layer_delays(one, layer_of(one), kSets);
  std::vector<double> found;
  for (const auto& [at, delay] : delays.before) found.push_back(delay.value());
  std::ranges::sort(found);
  ASSERT_EQ(found.size(), static_cast<std::size_t>(kSets));
  double sum = 0;
  for (int i = 0; i < kSets; ++i) {
    const double expected = last_rank_delay(published_jitter("vm"), 2, (i + 0.5) / kSets) * 100e-6;
    EXPECT_NEAR(found[static_cast<std::size_t>(i)], expected, 1e-12);
    sum += expected;
  }
  EXPECT_NEAR(delays.at_begin.value(), sum / kSets, 1e-12);
}

// Each layer of a chain has weights of its own, and waits for the one ahead on every stream.
TEST(MoeCases, LayersOfAChainFollowEachOther) {
  const Plan layer = moe_plan(parse_moe_case("tiny_llama4 tokens=8 streams=2"));
  const Plan chain = chained(layer, 3);
  EXPECT_EQ(chain.ops().size(), 3 * layer.ops().size());
  EXPECT_DOUBLE_EQ(memory_of(chain, 0).weights.value(), 3 * memory_of(layer, 0).weights.value());
  const std::vector<Task> tasks = rank_tasks(chain, 0);
  const auto place = [&](const std::string& name) {
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      if (task_name(chain, tasks[i]) == name) return static_cast<std::int32_t>(i);
    }
    throw std::invalid_argument("no op " + name);
  };
  const auto waits =
      event_waits(task_memory(chain, 0, tasks, plan_buffers(chain, 0), kv_layers(chain, 0)));
  const auto& shared = waits[static_cast<std::size_t>(place("shared.gate_up_proj#1"))];
  EXPECT_EQ(shared, std::vector<std::int32_t>{place("scatter#0")});
  EXPECT_EQ(chained(layer, 1), layer);
}

// Two layers of two ops, the second on another stream and 4 us after the first began:
//   0   a#0 6 us        20  a#1 8 us
//   4   b.0#0 6 us      24  b.0#1 6 us          together for 2 and 4 us
TEST(LayerRow, SpansAreMediansOverLayersAndTimesTogether) {
  Plan plan;
  const GroupId ranks = plan.add_group({0});
  Timeline timeline;
  constexpr double kMicro = 1e-6;
  const auto add = [&](const std::string& name, int stream, double start, double end) {
    const OpId op = plan.add_op({.name = name, .body = HostOp{}, .ranks = ranks, .stream = stream});
    timeline.spans.push_back({.op = op,
                              .stream = stream,
                              .start = Seconds(start * kMicro),
                              .end = Seconds(end * kMicro)});
  };
  add("a#0", 0, 0, 6);
  add("b.0#0", 1, 4, 10);
  add("a#1", 0, 20, 28);
  add("b.0#1", 1, 24, 30);
  const LayerSpans spans = layer_spans(plan, timeline, 0);
  ASSERT_EQ(spans.ops.size(), 2U);
  EXPECT_EQ(spans.ops[0].first, "a");
  EXPECT_EQ(spans.ops[1].first, "b");
  EXPECT_NEAR(spans.ops[0].second.value(), 7 * kMicro, 1e-12);
  EXPECT_NEAR(spans.ops[1].second.value(), 6 * kMicro, 1e-12);
  EXPECT_NEAR(spans.busy.value(), 10 * kMicro, 1e-12);    // (10 + 10) / 2
  EXPECT_NEAR(spans.overlap.value(), 3 * kMicro, 1e-12);  // (2 + 4) / 2
}

// Kernels from 0 to 6 and 12 to 14, a collective from 4 to 12: 8 us of 14, of them 6 by itself.
TEST(LayerRow, CommunicationIsExposedWhereNothingElseRuns) {
  Plan plan;
  const GroupId ranks = plan.add_group({0, 1});
  Timeline timeline;
  constexpr double kMicro = 1e-6;
  const auto add = [&](Op op, double start, double end) {
    op.ranks = ranks;
    timeline.spans.push_back({.op = plan.add_op(std::move(op)),
                              .start = Seconds(start * kMicro),
                              .end = Seconds(end * kMicro)});
  };
  add({.name = "a", .body = HostOp{}}, 0, 6);
  add({.name = "exchange", .body = CommOp{}, .stream = 1}, 4, 12);
  add({.name = "b", .body = HostOp{}}, 12, 14);
  const LayerSpans spans = layer_spans(plan, timeline, 0);
  EXPECT_NEAR(spans.busy.value(), 14 * kMicro, 1e-12);
  EXPECT_NEAR(spans.communication.value(), 8 * kMicro, 1e-12);
  EXPECT_NEAR(spans.exposed.value(), 6 * kMicro, 1e-12);
}

TEST(LayerRow, CellsStandInTheColumnsOfTheTable) {
  LayerRow row;
  row.set("case", std::int64_t{3});
  row.set("spread", 0.5);
  row.set("error", "a \"b\", c");
  const std::string text = to_csv(std::vector{row});
  EXPECT_TRUE(text.starts_with("case,text,"));
  EXPECT_TRUE(text.ends_with(",error\n3" + std::string(22, ',') + "0.5" + std::string(20, ',') +
                             "\"a \"\"b\"\", c\"\n"));
  EXPECT_THROW(row.set("no_such_column", "x"), std::invalid_argument);
}

}  // namespace
}  // namespace orrery::tool
