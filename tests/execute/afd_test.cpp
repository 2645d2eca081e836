// Attention and FFNs on ranks of their own change no logits: the reference interpreter on each way
// to split them.

#include <gtest/gtest.h>

#include <vector>

#include "tests/execute/deployment.h"

namespace orrery {
namespace {

using testing::deployment_of;
using testing::ReferenceRuns;
using testing::relative_difference;
using testing::TestSequence;
using testing::tiny_deepseek;

constexpr FfnSchedule kLock = FfnSchedule::kLock;

// Prompts, then a decode of each: eight of them are as many in each of 1, 2 or 4 micro-batches on
// one or two attention instances.
std::vector<StepInput> apart_steps(int num_sequences = 8) {
  StepInput prefill;
  StepInput decode;
  for (int i = 0; i < num_sequences; ++i) {
    const TestSequence sequence{i, 30};
    prefill.prefill.push_back(sequence.chunk(0, 5));
    decode.decodes.push_back(sequence.chunk(5, 6));
  }
  return {prefill, decode};
}

void expect_logits_of_one_rank(const ModelConfig& model, const std::vector<Mesh>& meshes) {
  for (const bool fuses : {false, true}) {
    for (Mesh mesh : meshes) {
      for (const int num_micro_batches : {1, 2, 4}) {
        mesh.num_micro_batches = num_micro_batches;
        check_mesh(model, mesh);
        ReferenceRuns apart(deployment_of(model, mesh, fuses));
        ReferenceRuns single(deployment_of(model, {}, fuses));
        for (const StepInput& step : apart_steps()) {
          EXPECT_LT(relative_difference(apart.run(step).logits, single.run(step).logits), 1e-9)
              << "dp " << mesh.dp << " tp " << mesh.tp << " ep " << mesh.ep << " ffn "
              << mesh.ffn_instances << " x " << mesh.ffn_tp << " m " << num_micro_batches;
        }
      }
    }
  }
}

TEST(ReferenceAfd, DenseFfnsApartGiveTheLogitsOfOneRank) {
  expect_logits_of_one_rank(testing::tiny_llama(),
                            {{.ffn_instances = 1},
                             {.dp = 2, .ffn_instances = 1},
                             {.dp = 2, .ffn_instances = 3},
                             {.tp = 2, .ffn_instances = 1, .ffn_tp = 2},
                             {.dp = 2, .ffn_instances = 1, .ffn_tp = 2},
                             {.dp = 2, .ffn_instances = 1, .ffn_tp = 3},
                             {.dp = 2, .tp = 2, .ffn_instances = 2, .ffn_tp = 2},
                             {.dp = 2, .ffn_instances = 2, .ffn_schedule = kLock}});
}

TEST(ReferenceAfd, RoutedExpertsApartGiveTheLogitsOfOneRank) {
  const std::vector<Mesh> meshes{{.ffn_instances = 1},
                                 {.dp = 2, .ep = 2, .ffn_instances = 2},
                                 {.dp = 2, .ep = 4, .ffn_instances = 4},
                                 {.dp = 2, .ep = 2, .ffn_instances = 1, .ffn_tp = 2},
                                 {.dp = 2, .ffn_instances = 2, .ffn_tp = 2},
                                 {.tp = 2, .ep = 4, .ffn_instances = 2, .ffn_tp = 2},
                                 {.dp = 2, .ep = 2, .ffn_instances = 2, .ffn_schedule = kLock}};
  expect_logits_of_one_rank(tiny_deepseek(4), meshes);
}

// Six sequences on three attention ranks and two FFN ranks, of which the one between sends to both;
// and shares of FFN ranks that are filled up: four ranks of six rows.
TEST(ReferenceAfd, RowsNeedNotDivideAsTheRanksDo) {
  for (const Mesh& mesh :
       {Mesh{.dp = 3, .ffn_instances = 1}, Mesh{.dp = 3, .ffn_instances = 1, .ffn_tp = 2},
        Mesh{.ffn_instances = 1, .ffn_tp = 4}, Mesh{.dp = 2, .ffn_instances = 1, .ffn_tp = 4},
        Mesh{.dp = 3, .ep = 2, .ffn_instances = 1, .ffn_tp = 2},
        Mesh{.dp = 3, .ep = 4, .ffn_instances = 1, .ffn_tp = 4}}) {
    const ModelConfig model = mesh.ep > 1 ? tiny_deepseek(4) : testing::tiny_llama();
    check_mesh(model, mesh);
    ReferenceRuns apart(deployment_of(model, mesh));
    ReferenceRuns single(deployment_of(model, {}));
    for (const StepInput& step : apart_steps(6)) {
      EXPECT_LT(relative_difference(apart.run(step).logits, single.run(step).logits), 1e-9)
          << "dp " << mesh.dp << " ep " << mesh.ep << " ffn_tp " << mesh.ffn_tp;
    }
  }
}

}  // namespace
}  // namespace orrery
