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

// Eight prompts, then a decode of each: of 1, 2 or 4 micro-batches on one or two attention
// instances all have as many.
std::vector<StepInput> apart_steps() {
  StepInput prefill;
  StepInput decode;
  for (int i = 0; i < 8; ++i) {
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

}  // namespace
}  // namespace orrery
