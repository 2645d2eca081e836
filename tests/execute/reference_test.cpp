// The reference interpreter: the same logits however a plan is split over ranks, cut into chunks
// or padded, and other logits as soon as one collective is missing.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/execute/wrong_plan.h"
#include "tests/execute/deployment.h"

namespace orrery {
namespace {

using testing::Deployment;
using testing::ReferenceRuns;
using testing::relative_difference;
using testing::TestSequence;

const std::vector<Mesh> kMeshes{{.tp = 2},
                                {.tp = 4},
                                {.pp = 2},
                                {.dp = 2},
                                {.tp = 2, .sp = true},
                                {.tp = 4, .pp = 2, .sp = true},
                                {.tp = 2, .pp = 2},
                                {.pp = 2, .num_micro_batches = 2},
                                {.dp = 2, .tp = 2, .pp = 2}};

std::string text(const Mesh& mesh) {
  return "tp " + std::to_string(mesh.tp) + " pp " + std::to_string(mesh.pp) + " dp " +
         std::to_string(mesh.dp) + (mesh.sp ? " sp" : "") + " micro-batches " +
         std::to_string(mesh.num_micro_batches);
}

// Prefill of four prompts of unequal lengths, decode of all, then two chunks beside two decodes
// (of sequences 0 and 2, so that each of two data-parallel ranks has a chunk and a decode of its
// own).
std::vector<StepInput> steps() {
  const std::vector<TestSequence> sequences{{0, 30}, {1, 30}, {2, 30}, {3, 30}};
  const std::vector<std::int64_t> lengths{5, 3, 7, 2};
  StepInput prefill;
  StepInput decode;
  for (std::size_t i = 0; i < 4; ++i) {
    prefill.prefill.push_back(sequences[i].chunk(0, lengths[i], i != 1));
    decode.decodes.push_back(sequences[i].chunk(lengths[i], lengths[i] + 1));
  }
  StepInput mixed;
  for (const std::size_t i : {0, 2}) {
    mixed.prefill.push_back(sequences[i].chunk(lengths[i] + 1, lengths[i] + 5));
  }
  for (const std::size_t i : {1, 3}) {
    mixed.decodes.push_back(sequences[i].chunk(lengths[i] + 1, lengths[i] + 2));
  }
  return {prefill, decode, mixed};
}

double worst_difference(ReferenceRuns& found, ReferenceRuns& expected) {
  double worst = 0;
  for (const StepInput& step : steps()) {
    const auto a = found.run(step);
    const auto b = expected.run(step);
    EXPECT_EQ(a.next_tokens, b.next_tokens);
    worst = std::max(worst, relative_difference(a.logits, b.logits));
  }
  return worst;
}

TEST(ReferenceModel, EveryMeshGivesTheLogitsOfOneRank) {
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    for (const bool fuses : {true, false}) {
      Deployment deployment;
      deployment.options.precision.weights = deployment.options.precision.activations = dtype;
      deployment.options.fuse_residual_norm = deployment.options.fuse_norm_quant = fuses;
      for (const Mesh& mesh : kMeshes) {
        ReferenceRuns single(deployment);
        Deployment split = deployment;
        split.mesh = mesh;
        ReferenceRuns ranks(split);
        EXPECT_LT(worst_difference(ranks, single), 1e-9) << text(mesh);
      }
    }
  }
}

TEST(ReferenceModel, AFusedResidualChangesNothing) {
  ReferenceRuns fused({});
  ReferenceRuns separate({.options = {.fuse_residual_norm = false}});
  EXPECT_LT(worst_difference(fused, separate), 1e-9);
}

TEST(ReferenceModel, ABiasIsAddedOnceHoweverRowsAreSplit) {
  ConfigFields fields = testing::tiny_llama_fields();
  fields["attention_bias"] = true;
  const ModelConfig model = model_config("biased", fields);
  ReferenceRuns single({.model = model});
  ReferenceRuns ranks({.model = model, .mesh = {.tp = 4}});
  EXPECT_LT(worst_difference(ranks, single), 1e-9);
}

TEST(ReferenceModel, HeadsAreNormedAlikeHoweverTheyAreSplit) {
  ConfigFields fields = testing::tiny_llama_fields();
  fields["use_qk_norm"] = true;
  const ModelConfig model = model_config("normed", fields);
  ReferenceRuns plain({});
  ReferenceRuns single({.model = model});
  EXPECT_GT(relative_difference(single.run(steps()[0]).logits, plain.run(steps()[0]).logits), 1e-3);
  for (const Mesh& mesh : kMeshes) {
    ReferenceRuns alone({.model = model});
    ReferenceRuns ranks({.model = model, .mesh = mesh});
    EXPECT_LT(worst_difference(ranks, alone), 1e-9) << text(mesh);
  }
}

// A change to a plan is noticed if the step cannot run or its logits differ.
bool is_noticed(const Mesh& mesh, const ReferenceRuns::Change& change) {
  ReferenceRuns single({});
  ReferenceRuns wrong({.mesh = mesh}, change);
  for (const StepInput& step : steps()) {
    try {
      const auto found = wrong.run(step);
      if (relative_difference(found.logits, single.run(step).logits) > 1e-6) return true;
    } catch (const std::invalid_argument&) {
      return true;
    }
  }
  return false;
}

TEST(ReferenceModel, ACollectiveLeftOutIsNoticed) {
  int num_collectives = 0;
  for (const Mesh& mesh : kMeshes) {
    const Plan plan = parallelize(lower(testing::tiny_llama(), batch_of(steps()[0]), {}), mesh);
    for (const std::string& name : collective_names(plan)) {
      ++num_collectives;
      EXPECT_TRUE(is_noticed(mesh, [&](const Plan& step) { return without_op(step, name); }))
          << text(mesh) << " without " << name;
    }
  }
  EXPECT_GT(num_collectives, 40);
}

TEST(ReferenceModel, ACollectiveAfterTheOpThatNeedsItIsNoticed) {
  for (const Mesh& mesh : {Mesh{.tp = 2}, Mesh{.tp = 4}, Mesh{.dp = 2, .tp = 2}}) {
    const Plan plan = parallelize(lower(testing::tiny_llama(), batch_of(steps()[0]), {}), mesh);
    for (const std::string& name : collective_names(plan)) {
      const ReferenceRuns::Change change = [&](const Plan& step) {
        return with_op_late(step, name);
      };
      EXPECT_TRUE(is_noticed(mesh, change)) << text(mesh) << " with " << name << " late";
    }
  }
}

TEST(ReferenceModel, APromptInTwoChunksIsAPromptInOne) {
  const TestSequence sequence(0, 13);
  ReferenceRuns once({});
  const auto expected = once.run({.prefill = {sequence.chunk(0, 13)}});
  for (const std::int64_t cut : {1, 4, 6, 12}) {
    ReferenceRuns twice({});
    const auto first = twice.run({.prefill = {sequence.chunk(0, cut, false)}});
    EXPECT_TRUE(first.next_tokens.empty());
    const auto found = twice.run({.prefill = {sequence.chunk(cut, 13)}});
    EXPECT_LT(relative_difference(found.logits, expected.logits), 1e-12) << "cut at " << cut;
  }
}

TEST(ReferenceModel, PrefillThenDecodeIsPrefillOfAll) {
  const TestSequence sequence(2, 12);
  ReferenceRuns steps({});
  (void)steps.run({.prefill = {sequence.chunk(0, 7)}});
  for (std::int64_t length = 8; length <= 12; ++length) {
    ReferenceRuns once({});
    const auto expected = once.run({.prefill = {sequence.chunk(0, length)}});
    const auto found = steps.run({.decodes = {sequence.chunk(length - 1, length)}});
    EXPECT_LT(relative_difference(found.logits, expected.logits), 1e-12) << length;
  }
}

TEST(ReferenceModel, PaddingRowsChangeNothing) {
  const std::vector<TestSequence> sequences{{0, 7}, {1, 7}, {2, 7}};
  StepInput prefill;
  StepInput decode;
  for (const TestSequence& sequence : sequences) {
    const auto length = std::ssize(sequence.tokens);
    prefill.prefill.push_back(sequence.chunk(0, length - 1));
    decode.decodes.push_back(sequence.chunk(length - 1, length));
  }
  for (const Mesh& mesh : {Mesh{}, Mesh{.tp = 2, .sp = true}, Mesh{.dp = 2}}) {
    ReferenceRuns plain({.mesh = mesh});
    ReferenceRuns padded({.mesh = mesh});
    (void)plain.run(prefill);
    (void)padded.run(prefill);
    const auto expected = plain.run(decode);
    Batch batch = batch_of(decode);
    batch.num_decodes = 8;
    const auto found = padded.run(decode, batch);
    EXPECT_EQ(found.next_tokens, expected.next_tokens);
    EXPECT_LT(relative_difference(found.logits, expected.logits), 1e-12) << text(mesh);
  }
}

// A bf16 has 8 significant bits; four layers of some ten roundings each leave a few of 2^-8.
TEST(ReferenceModel, RoundingToStoredFormatsMovesLogitsALittle) {
  ReferenceRuns exact({});
  ReferenceRuns stored({.rounding = reference::Rounding::kStored});
  for (const StepInput& step : steps()) {
    const double moved = relative_difference(stored.run(step).logits, exact.run(step).logits);
    EXPECT_GT(moved, 1e-4);
    EXPECT_LT(moved, 5e-2);
  }
}

TEST(ReferenceModel, AKernelWithoutReferenceIsAnErrorThatNamesTheOp) {
  ReferenceRuns runs({.model = testing::small_deepseek()});
  try {
    (void)runs.run(steps()[0]);
    FAIL() << "a model of experts was run";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("layers.1.route"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace orrery
