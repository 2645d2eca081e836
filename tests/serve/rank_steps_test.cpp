// Steps of data-parallel ranks with batches of their own, against the plan of the slowest.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "sim/parallel/rank_rows.h"
#include "sim/serve/fast_forward.h"
#include "sim/serve/random.h"
#include "tests/serve/fake_steps.h"
#include "tests/serve/simulated_steps_testing.h"

namespace orrery {
namespace {

using testing::small_deepseek;

constexpr Seconds kHost(5e-4);
const Mesh kMesh{.dp = 4, .ep = 4};

class RankSteps : public testing::SimulatedStepsTest {
 protected:
  StepTimes times_{config(small_deepseek(), kMesh)};

  // As the plan of each rank has it, beside the tokens of all; eager.
  std::vector<double> exact(const std::vector<Batch>& ranks, const Mesh& mesh = kMesh) const {
    std::int64_t tokens = 0;
    std::int64_t sequences = 0;
    for (const Batch& batch : ranks) {
      tokens += num_tokens(batch);
      sequences = std::max(sequences, num_sequences(batch));
    }
    const StepSetup eager = setup(small_deepseek(), mesh, eager_cost_);
    std::vector<double> times;
    for (const Batch& batch : ranks) {
      const StepShape shape = rank_shape(batch, tokens, 0, sequences, mesh);
      times.push_back((step_time(eager, shape).duration + kHost).value());
    }
    return times;
  }
};

Batch decodes(std::int64_t count, std::int64_t context) {
  return {.num_decodes = count, .decode_context = count * context};
}

// Decodes, prompts, both or nothing; the first rank has a prompt, so that the step is eager.
std::vector<Batch> unlike_ranks(Random& random) {
  const auto up_to = [&](double most) {
    return static_cast<std::int64_t>(std::exp(random.uniform() * std::log(most)));
  };
  std::vector<Batch> ranks(4);
  for (Batch& batch : ranks) {
    if (random.uniform() < 0.6) batch = decodes(up_to(200), 1 + up_to(9000));
    for (double more = random.uniform(); more > 0.6; more -= 0.2) {
      batch.prefill.push_back({.query = up_to(6000), .context = up_to(3000)});
    }
  }
  ranks[0].prefill.push_back({.query = up_to(6000)});
  return ranks;
}

TEST_F(RankSteps, EqualRanksTakeWhatTheirSumTakes) {
  const std::vector<Batch> ranks(4, decodes(8, 1024));
  const FastForward apart = times_.fast_forward(ranks, 100);
  const FastForward together = times_.fast_forward(decodes(32, 1024), 100);
  EXPECT_EQ(apart.first, together.first);
  EXPECT_EQ(apart.slope, together.slope);
  EXPECT_EQ(apart.num_steps, together.num_steps);
  EXPECT_NEAR(apart.energy.value(), together.energy.value(), 1e-9 * together.energy.value());

  const std::vector<Batch> prompts(4, {.prefill = {{.query = 4096}}});
  const double whole =
      times_.step({.prefill = std::vector(4, PrefillChunk{.query = 4096})}).duration.value();
  EXPECT_NEAR(times_.step(prompts).duration.value(), whole, 0.002 * whole);
}

TEST_F(RankSteps, TakeAsLongAsThePlanOfTheSlowest) {
  Random random(7);
  for (int i = 0; i < 40; ++i) {
    const std::vector<Batch> ranks = unlike_ranks(random);
    const std::vector<double> plans = exact(ranks);
    const StepTime step = times_.step(ranks);
    const double slowest = std::ranges::max(plans);
    EXPECT_NEAR(step.duration.value(), slowest, 0.01 * slowest) << i;
    ASSERT_EQ(step.ranks.size(), 4U);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      EXPECT_NEAR(step.ranks[rank].value(), plans[rank], 0.015 * plans[rank]) << i << " " << rank;
    }
  }
}

TEST_F(RankSteps, AShortPromptWaitsForALongOne) {
  const auto alike = [&](std::int64_t tokens) {
    return times_.step({.prefill = std::vector(4, PrefillChunk{.query = tokens})}).duration;
  };
  std::vector<Batch> ranks(4, {.prefill = {{.query = 512}}});
  ranks[1].prefill.front().query = 8192;
  const StepTime step = times_.step(ranks);
  EXPECT_EQ(step.duration, step.ranks[1]);
  EXPECT_LT(step.duration, alike(8192));  // experts take in fewer tokens
  EXPECT_GT(step.duration, alike(8192) * 0.5);
  EXPECT_LT(step.ranks[0], step.duration * 0.8);
  EXPECT_GT(step.ranks[0], alike(512));  // and more than their own
  EXPECT_EQ(step.ranks[0], step.ranks[2]);
}

TEST_F(RankSteps, OfDecodesAllPadToTheGraphOfTheFullest) {
  std::vector<Batch> ranks(4, decodes(2, 1024));
  const Seconds small = times_.step(ranks).duration;
  ranks[3] = decodes(9, 1024);  // pads to 16
  const Seconds padded = times_.step(ranks).duration;
  EXPECT_GT(padded, small);
  EXPECT_LE(padded, times_.step(std::vector(4, decodes(16, 1024))).duration);
  ranks[0] = {};  // computes a token nevertheless
  EXPECT_EQ(times_.step(ranks).duration, padded);
  ranks[3] = decodes(65, 1024);  // beyond the largest graph
  EXPECT_GT(times_.step(ranks).duration, padded);
}

// Of experts in ops of their own, as they are executed: rows that pad ranks take none.
TEST_F(RankSteps, ExpertsTakeNoRowsThatPadRanks) {
  SimulatedStepsConfig made = config(small_deepseek(), kMesh);
  made.mesh.expert_comm = ExpertComm::kTokens;
  made.lowering.moe_design = MoeDesign::kShuffling;
  StepTimes times(made);
  const std::vector<Batch> full(4, {.prefill = {{.query = 4096}}});
  std::vector<Batch> one = full;
  for (std::size_t rank = 1; rank < 4; ++rank) one[rank] = decodes(8, 1024);
  StepShape shape = rank_shape(one[0], 4096 + 24, 0, 8, made.mesh);
  shape.padding =
      shape.tokens - std::llround(static_cast<double>(shape.tokens) * (4096 + 24) / (4 * 4096));
  StepSetup eager = setup(small_deepseek(), made.mesh, eager_cost_);
  eager.lowering = made.lowering;
  const double exact = (step_time(eager, shape).duration + kHost).value();
  EXPECT_NEAR(times.step(one).duration.value(), exact, 0.01 * exact);
  EXPECT_LT(times.step(one).duration, times.step(full).duration);
  shape.padding = 0;
  EXPECT_GT((step_time(eager, shape).duration + kHost).value(), 1.02 * exact);
}

// Even parts of all rows: ranks differ in what their own sequences attend to.
class BalancedSteps : public RankSteps {
 protected:
  static Mesh balanced(AttentionGather gather) {
    return {.dp = 4, .ep = 4, .dp_rows = DpRows::kBalanced, .attention_gather = gather};
  }
};

TEST_F(BalancedSteps, TakeAsLongAsTheirPlans) {
  for (const AttentionGather gather : {AttentionGather::kNorm, AttentionGather::kProjected}) {
    const Mesh mesh = balanced(gather);
    StepTimes times(config(small_deepseek(), mesh));
    Random random(11);
    for (int i = 0; i < 40; ++i) {
      const std::vector<Batch> ranks = unlike_ranks(random);
      const std::vector<double> plans = exact(ranks, mesh);
      const StepTime step = times.step(ranks);
      for (std::size_t rank = 0; rank < 4; ++rank) {
        EXPECT_NEAR(step.ranks[rank].value(), plans[rank], 0.015 * plans[rank]) << i << " " << rank;
      }
    }
  }
}

double balance_of(const StepTime& step) {
  double sum = 0;
  for (const Seconds time : step.ranks) sum += time.value();
  return sum / static_cast<double>(step.ranks.size()) / std::ranges::max(step.ranks).value();
}

// One rank has a long prompt, for which the others wait: with rows of its own in all ops, with even
// parts in those of its attention alone.
TEST_F(BalancedSteps, WaitLessForALongPrompt) {
  StepTimes balanced_times(config(small_deepseek(), balanced(AttentionGather::kProjected)));
  std::vector<Batch> ranks(4, {.prefill = {{.query = 512}}});
  ranks[1].prefill.front().query = 8192;
  EXPECT_GT(balance_of(balanced_times.step(ranks)), balance_of(times_.step(ranks)) + 0.05);
  // Alike ranks gain nothing, and move rows all the same.
  const std::vector<Batch> alike(4, {.prefill = {{.query = 2432}}});
  EXPECT_NEAR(balance_of(balanced_times.step(alike)), 1, 1e-12);
  EXPECT_GT(balanced_times.step(alike).duration, times_.step(alike).duration);
}

// 36 decodes on four ranks: even parts are 9, padded to 16, where the fullest rank pads to 32.
TEST_F(BalancedSteps, PadEvenPartsToAGraphOfTheirOwn) {
  StepTimes balanced_times(config(small_deepseek(), balanced(AttentionGather::kNorm)));
  std::vector<Batch> ranks(4, decodes(4, 1024));
  ranks[2] = decodes(24, 1024);
  const StepShape own = rank_shape(ranks[2], 16 * 4, 32, 24, balanced(AttentionGather::kNorm));
  const Mesh mesh = balanced(AttentionGather::kNorm);
  const double plan =
      (step_time(setup(small_deepseek(), mesh, graph_cost_), own).duration + kHost).value();
  EXPECT_NEAR(balanced_times.step(ranks).duration.value(), plan, 0.01 * plan);
}

// Every fourth prompt is 16 times as long, and ranks take requests in turn.
TEST_F(BalancedSteps, OfAServiceWaitLess) {
  std::vector<Request> requests;
  for (int i = 0; i < 64; ++i) {
    requests.push_back({.prompt_tokens = i % 4 == 0 ? 4096 : 256, .output_tokens = 8});
  }
  ServiceConfig service = testing::small_service();
  service.engine.max_num_batched_tokens = 4096;
  service.num_kv_blocks = 100'000;
  service.num_dp_ranks = 4;
  const auto served = [&](StepTimes& times) {
    const auto result = serve(testing::workload_of(requests), service, {},
                              [&](int) { return std::make_unique<SimulatedSteps>(times); });
    return *result.metrics.ranks;
  };
  StepTimes balanced_times(config(small_deepseek(), balanced(AttentionGather::kProjected)));
  const auto own = served(times_);
  const auto even = served(balanced_times);
  EXPECT_GT(even.balance, own.balance);
  EXPECT_LT(std::ranges::max(even.wait), std::ranges::max(own.wait));
}

TEST_F(RankSteps, AFastForwardIsTheSumOfItsStepsAlthoughTheSlowestRankChanges) {
  // The second rank has fewer tokens cached, and more that grow.
  std::vector<Batch> ranks{decodes(2, 30000), decodes(60, 950), decodes(5, 100), {}};
  Seconds sum;
  Seconds fast_sum;
  std::int64_t done = 0;
  std::int64_t num_pieces = 0;
  int last_slowest = -1;
  int num_changes = 0;
  while (done < 600) {
    std::vector<Batch> now = ranks;
    for (Batch& batch : now) batch.decode_context += batch.num_decodes * done;
    const FastForward fast = times_.fast_forward(now, 600 - done);
    const auto slowest = std::ranges::max_element(fast.ranks) - fast.ranks.begin();
    num_changes += last_slowest >= 0 && slowest != last_slowest ? 1 : 0;
    last_slowest = static_cast<int>(slowest);
    fast_sum += fast_forward_duration(fast, fast.num_steps);
    for (std::int64_t i = 0; i < fast.num_steps; ++i) {
      std::vector<Batch> then = now;
      for (Batch& batch : then) batch.decode_context += batch.num_decodes * i;
      sum += times_.fast_forward(then, 1).first;
    }
    done += fast.num_steps;
    ++num_pieces;
  }
  EXPECT_NEAR(fast_sum.value(), sum.value(), 1e-9 * sum.value());
  EXPECT_LT(num_pieces, 60);
  EXPECT_EQ(num_changes, 1);
}

}  // namespace
}  // namespace orrery
