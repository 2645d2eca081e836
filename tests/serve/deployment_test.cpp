#include "sim/serve/deployment.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace orrery {
namespace {

// Every field differs from its default.
Deployment example() {
  Deployment deployment;
  deployment.name = "a model";
  deployment.config = {{"attention_bias", true},
                       {"architectures", std::vector<std::string>{"Llama For \"us\"", "-"}},
                       {"eos_token_id", std::vector<std::int64_t>{1, 2}},
                       {"empty", std::vector<std::int64_t>{}},
                       {"hidden_size", std::int64_t{2048}},
                       {"rms_norm_eps", 1e-5},
                       {"rope_scaling", std::monostate()},
                       {"a key", std::string("two\nlines \\ and more")},
                       {"torch_dtype", std::string("bfloat16")},
                       {"nothing", std::string()}};
  deployment.lowering = {.precision = {.weights = DType::kFp8,
                                       .expert_weights = DType::kMxfp4,
                                       .activations = DType::kFp8,
                                       .kv_cache = DType::kFp8,
                                       .lm_head = DType::kFp8},
                         .mla_form = MlaForm::kModule,
                         .attention_form = AttentionForm::kPacked,
                         .fuse_residual_norm = false,
                         .fuse_norm_quant = false,
                         .moe_design = MoeDesign::kShuffling,
                         .moe_streams = 2,
                         .fuse_scatter_add = true,
                         .fuse_gather = true,
                         .shared_inside = true,
                         .capacity_percent = 125,
                         .expert_load = {.shares = {0.1, 0.3, 0.6}}};
  deployment.mesh = {.dp = 2,
                     .tp = 4,
                     .cp = 3,
                     .ep = 8,
                     .pp = 5,
                     .sp = true,
                     .num_micro_batches = 6,
                     .ffn_instances = 9,
                     .ffn_tp = 10,
                     .ffn_schedule = FfnSchedule::kLock,
                     .expert_comm = ExpertComm::kAllGather,
                     .moe_chunks = 3,
                     .split_shared_expert = false,
                     .two_batch_overlap = true,
                     .num_redundant_experts = 7,
                     .expert_load = {.shares = {0.25, 0.75}}};
  deployment.engine = {.max_num_seqs = 1,
                       .max_num_batched_tokens = 2,
                       .block_size = 64,
                       .gpu_memory_utilization = 0.1 + 0.2,
                       .memory_fraction = MemoryFraction::kFree,
                       .enable_chunked_prefill = false,
                       .enable_prefix_caching = true,
                       .scheduler_reserve_full_isl = false,
                       .max_model_len = 9,
                       .async_scheduling = true,
                       .scheduler_policy = SchedulerPolicy::kPrefillFirst,
                       .kv_admission = KvAdmission::kEstimated,
                       .new_token_ratio = 0.7,
                       .stream_interval = 10,
                       .batch_wait_timeout_iters = 20,
                       .batch_wait_max_tokens_ratio = 0.9,
                       .max_prefill_tokens = 3};
  deployment.graph_batch_sizes = {1, 2, 4};
  deployment.megakernel_batch_sizes = {1, 2};
  deployment.num_kv_blocks = 123456789012;
  deployment.seed = ~std::uint64_t{0};
  return deployment;
}

// The text with the first `from` replaced.
std::string replaced(const std::string& from, const std::string& to) {
  std::string text = to_text(example());
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

void expect_error(const std::string& text, const std::string& part) {
  try {
    parse_deployment(text);
    FAIL() << "no error, expected one with: " << part;
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Deployment, ReadsBackAsItWas) {
  EXPECT_EQ(parse_deployment(to_text(example())), example());
  EXPECT_EQ(parse_deployment(to_text(Deployment())), Deployment());
}

TEST(Deployment, HasOneLineForEachField) {
  const std::string text = to_text(example());
  EXPECT_NE(text.find("mesh tp 4\n"), std::string::npos) << text;
  EXPECT_NE(text.find("mesh moe_chunks 3\n"), std::string::npos) << text;
  EXPECT_NE(text.find("lowering capacity_percent 125\n"), std::string::npos) << text;
  for (const char* const other :
       {"moe_chunks", "fuse_gather", "shared_inside", "capacity_percent"}) {
    EXPECT_EQ(to_text(Deployment()).find(other), std::string::npos);
  }
  EXPECT_NE(text.find("config hidden_size int 2048\n"), std::string::npos) << text;
  EXPECT_NE(text.find("config eos_token_id ints 1,2\n"), std::string::npos) << text;
  EXPECT_NE(text.find("config rope_scaling null\n"), std::string::npos) << text;
  EXPECT_NE(text.find("config architectures texts \"Llama For \\\"us\\\"\" \"-\"\n"),
            std::string::npos)
      << text;
}

TEST(Deployment, TakesEmptyLinesCommentsAndDosLineEnds) {
  EXPECT_EQ(parse_deployment("# of a test\n\n" + replaced("mesh tp 4\n", "mesh tp 4\r\n")),
            example());
}

TEST(Deployment, SaysTheLineOfWhatItCannotRead) {
  expect_error("name x\nmesh tp four\n", "line 2: found \"four\", expected a whole number");
  expect_error("mesh tp 4 4\n", "line 1: found \"4 4\"");
  expect_error("precision weights fp7\n", "line 1: unknown dtype \"fp7\"");
  expect_error("\nlowering mla_form absorb\n",
               "line 2: found \"absorb\", expected one of auto absorbed");
  expect_error("config hidden_size whole 4\n", "expected one of null bool int");
  expect_error("config name text \"open\n", "expected a closing quote");
  expect_error("config name null 4\n", "expected the end of the line");
  expect_error("engine gpu_memory_utilization most\n", "expected a number");
  expect_error("graph_batch_sizes 1,,2\n", "expected a whole number");
}

TEST(Deployment, OffersTheNearestOfAnUnknownField) {
  expect_error(replaced("mesh tp 4", "mesh tpp 4"), "unknown field \"mesh tpp\"");
  expect_error(replaced("mesh tp 4", "mesh tpp 4"), "nearest is \"mesh tp\"");
}

TEST(Deployment, NeedsEveryFieldOnce) {
  expect_error(replaced("mesh tp 4\n", ""), "field \"mesh tp\" is missing");
  expect_error(replaced("mesh tp 4\n", "mesh tp 4\nmesh tp 4\n"),
               "\"mesh tp\" for the second time");
  expect_error(replaced("seed", "config a null\nconfig a null\nseed"),
               "\"config a\" for the second time");
}

}  // namespace
}  // namespace orrery
