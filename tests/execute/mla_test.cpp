// Multi-head latent attention on the reference interpreter: a token's logits do not depend on how
// its sequence came into the cache, in which form it is attended, or how heads are split over
// ranks.

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
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

// One dense layer and 2 of experts, 4 heads of 6 + 4 over latents of 16: queries from the hidden
// state, or from a latent of 12.
ModelConfig tiny_mla(bool has_query_latent) {
  ConfigFields fields = testing::small_deepseek_fields();
  fields["model_type"] = std::string(has_query_latent ? "deepseek_v3" : "deepseek_v2");
  fields["hidden_size"] = std::int64_t{64};
  fields["vocab_size"] = std::int64_t{41};
  fields["num_hidden_layers"] = std::int64_t{3};
  fields["num_attention_heads"] = std::int64_t{4};
  fields["num_key_value_heads"] = std::int64_t{4};
  fields["intermediate_size"] = std::int64_t{48};
  fields["moe_intermediate_size"] = std::int64_t{16};
  fields["kv_lora_rank"] = std::int64_t{16};
  fields["qk_nope_head_dim"] = std::int64_t{6};
  fields["qk_rope_head_dim"] = std::int64_t{4};
  fields["v_head_dim"] = std::int64_t{6};
  fields["n_routed_experts"] = std::int64_t{8};
  fields["num_experts_per_tok"] = std::int64_t{2};
  fields.erase("q_lora_rank");
  if (has_query_latent) fields["q_lora_rank"] = std::int64_t{12};
  return model_config("tiny", fields);
}

Deployment mla_deployment(bool has_query_latent, const Mesh& mesh = {}) {
  Deployment deployment{.model = tiny_mla(has_query_latent), .mesh = mesh};
  deployment.options.moe_design = MoeDesign::kShuffling;
  return deployment;
}

StepInput prefill_of(std::vector<SequenceTokens> chunks) { return {.prefill = std::move(chunks)}; }

// Logits of token `at` of a sequence, of a prefill that ends with it.
std::vector<double> logits_of(const Deployment& deployment, const TestSequence& sequence,
                              std::int64_t at) {
  ReferenceRuns runs(deployment);
  return runs.run(prefill_of({sequence.chunk(0, at + 1)})).logits;
}

std::vector<double> joined(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> both = a;
  both.insert(both.end(), b.begin(), b.end());
  return both;
}

// A decode attends latents, a prefill the keys and values that they expand to.
TEST(ReferenceMla, ADecodeGivesTheLogitsOfAPrefill) {
  for (const bool has_query_latent : {false, true}) {
    const Deployment deployment = mla_deployment(has_query_latent);
    const TestSequence sequence(0, 20);
    ReferenceRuns runs(deployment);
    static_cast<void>(runs.run(prefill_of({sequence.chunk(0, 13)})));
    for (std::int64_t token = 13; token < 18; ++token) {
      const auto found = runs.run({.decodes = {sequence.chunk(token, token + 1)}}).logits;
      EXPECT_LT(relative_difference(found, logits_of(deployment, sequence, token)), 1e-9) << token;
    }
  }
}

// Chunks find the latents before them in the cache.
TEST(ReferenceMla, ChunksGiveTheLogitsOfAWholePrompt) {
  for (const bool has_query_latent : {false, true}) {
    const Deployment deployment = mla_deployment(has_query_latent);
    const TestSequence sequence(1, 20);
    const TestSequence other(3, 20);
    ReferenceRuns runs(deployment);
    static_cast<void>(
        runs.run(prefill_of({sequence.chunk(0, 5, false), other.chunk(0, 3, false)})));
    const auto found = runs.run(prefill_of({sequence.chunk(5, 14), other.chunk(3, 10)})).logits;
    EXPECT_LT(relative_difference(found, joined(logits_of(deployment, sequence, 13),
                                                logits_of(deployment, other, 9))),
              1e-9);
  }
}

TEST(ReferenceMla, PrefillBesideDecodesChangesNeither) {
  for (const bool has_query_latent : {false, true}) {
    const Deployment deployment = mla_deployment(has_query_latent);
    const TestSequence decoding(2, 20);
    const TestSequence begun(4, 20);
    for (const std::int64_t cached : {0, 6}) {
      ReferenceRuns runs(deployment);
      static_cast<void>(runs.run(prefill_of({decoding.chunk(0, 9)})));
      if (cached > 0) static_cast<void>(runs.run(prefill_of({begun.chunk(0, cached, false)})));
      const StepInput mixed{.prefill = {begun.chunk(cached, 12)},
                            .decodes = {decoding.chunk(9, 10)}};
      EXPECT_LT(
          relative_difference(runs.run(mixed).logits, joined(logits_of(deployment, begun, 11),
                                                             logits_of(deployment, decoding, 9))),
          1e-9)
          << cached;
    }
  }
}

std::vector<StepInput> conversation() {
  const TestSequence first(0, 20);
  const TestSequence second(5, 20);
  return {prefill_of({first.chunk(0, 7), second.chunk(0, 4, false)}),
          {.prefill = {second.chunk(4, 9)}, .decodes = {first.chunk(7, 8)}},
          {.decodes = {first.chunk(8, 9), second.chunk(9, 10)}}};
}

TEST(ReferenceMla, EveryMeshGivesTheLogitsOfOneRank) {
  for (const bool has_query_latent : {false, true}) {
    for (const Mesh& mesh : {Mesh{.tp = 2}, Mesh{.tp = 4}, Mesh{.tp = 2, .ep = 2}}) {
      ReferenceRuns one(mla_deployment(has_query_latent));
      ReferenceRuns split(mla_deployment(has_query_latent, mesh));
      for (const StepInput& step : conversation()) {
        EXPECT_LT(relative_difference(split.run(step).logits, one.run(step).logits), 1e-9)
            << "tp " << mesh.tp << " ep " << mesh.ep;
      }
    }
  }
}

TEST(ReferenceMla, ACollectiveLeftOutIsNoticed) {
  const Deployment deployment = mla_deployment(true, {.tp = 2});
  const StepInput step = conversation().front();
  ReferenceRuns one(mla_deployment(true));
  const auto expected = one.run(step).logits;
  const Plan plan =
      parallelize(lower(deployment.model, batch_of(step), deployment.options), deployment.mesh);
  const std::vector<std::string> names = collective_names(plan);
  EXPECT_FALSE(names.empty());
  for (const std::string& name : names) {
    ReferenceRuns wrong(deployment, [&](const Plan& right) { return without_op(right, name); });
    bool is_noticed = false;
    try {
      is_noticed = relative_difference(wrong.run(step).logits, expected) > 1e-6;
    } catch (const std::invalid_argument&) {
      is_noticed = true;
    }
    EXPECT_TRUE(is_noticed) << name;
  }
}

}  // namespace
}  // namespace orrery
