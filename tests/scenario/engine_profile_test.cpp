#include "sim/scenario/engine_profile.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "sim/scenario/scenario.h"
#include "tests/scenario/scenario_testing.h"

namespace orrery {
namespace {

using testing::kMinimal;
using testing::kPaths;
using EngineProfileTest = testing::ScenarioDirectory;

EngineProfile shipped_profile(const std::string& name) {
  return read_engine_profile(kPaths.root / "scenarios" / "engines" / (name + ".yaml"));
}

TEST(EngineProfileFile, every_number_of_vllm_has_its_source) {
  const EngineProfile profile = shipped_profile("vllm");
  EXPECT_GT(profile.scheduler_base.value(), 0);
  for (const std::string key :
       {"host.eager_launch", "host.graph_node", "host.d2h_sync", "host.scheduler_base",
        "host.scheduler_per_sequence", "front_end.per_request", "front_end.per_prompt_token",
        "front_end.per_output_token", "front_end.stream_latency", "kernel_time.eager",
        "kernel_time.eager_moe", "kernel_time.graph", "graph_memory", "communication_buffers"}) {
    EXPECT_TRUE(profile.sources.contains(key)) << key;
  }
}

TEST(EngineProfileFile, engines_schedule_in_their_own_ways) {
  const EngineProfile vllm = shipped_profile("vllm");
  EXPECT_TRUE(vllm.engine.async_scheduling);
  EXPECT_TRUE(vllm.engine.enable_chunked_prefill);
  EXPECT_EQ(vllm.engine.kv_admission, KvAdmission::kPrompt);
  EXPECT_FALSE(shipped_profile("vllm_sync").engine.async_scheduling);
  const EngineProfile trtllm = shipped_profile("trtllm");
  EXPECT_FALSE(trtllm.engine.enable_chunked_prefill);
  EXPECT_EQ(trtllm.engine.scheduler_policy, SchedulerPolicy::kMixed);
  EXPECT_EQ(trtllm.engine.kv_admission, KvAdmission::kFullLength);
  EXPECT_EQ(trtllm.graph_batch_sizes.back(), 2048);
  const EngineProfile sglang = shipped_profile("sglang");
  EXPECT_EQ(sglang.engine.scheduler_policy, SchedulerPolicy::kPrefillFirst);
  EXPECT_EQ(sglang.engine.kv_admission, KvAdmission::kEstimated);
  EXPECT_GT(sglang.engine.new_token_ratio, 0);
}

TEST(EngineProfileFile, a_profile_that_extends_another_keeps_what_it_does_not_state) {
  const EngineProfile base = shipped_profile("vllm");
  const EngineProfile extended = shipped_profile("vllm_sync");
  EXPECT_EQ(extended.name, "vllm_sync");
  EXPECT_EQ(extended.graph_batch_sizes, base.graph_batch_sizes);
  EXPECT_EQ(extended.host.d2h_sync, base.host.d2h_sync);  // beside host times of its own
  EXPECT_NE(extended.sources.at("async_scheduling"), base.sources.at("async_scheduling"));
  EXPECT_EQ(extended.sources.at("host.d2h_sync"), base.sources.at("host.d2h_sync"));
}

TEST_F(EngineProfileTest, an_engine_starts_from_its_profiles_defaults) {
  const std::string text = kMinimal;
  const Scenario plain =
      load_scenario(write("a.yaml", text + "engine: {profile: trtllm}\n"), kPaths);
  EXPECT_EQ(plain.engine.max_num_seqs, 2048);
  EXPECT_FALSE(plain.engine.enable_chunked_prefill);
  const Scenario stated =
      load_scenario(write("b.yaml", text + "engine: {profile: trtllm, max_num_seqs: 64, "
                                           "enable_chunked_prefill: true}\n"),
                    kPaths);
  EXPECT_EQ(stated.engine.max_num_seqs, 64);
  EXPECT_TRUE(stated.engine.enable_chunked_prefill);
  EXPECT_EQ(to_yaml(load_scenario(write("c.yaml", to_yaml(stated)), kPaths)), to_yaml(stated));
}

TEST_F(EngineProfileTest, profiles_that_extend_nothing_or_each_other_are_refused) {
  const auto refusal = [&](const std::filesystem::path& file) -> std::string {
    try {
      read_engine_profile(file);
    } catch (const ScenarioError& error) {
      return error.what();
    }
    return "(read)";
  };
  EXPECT_NE(refusal(write("a.yaml", "name: a\nextends: nobody\n")).find("a.yaml:2:10: extends"),
            std::string::npos);
  write("b.yaml", "name: b\nextends: c\n");
  EXPECT_NE(refusal(write("c.yaml", "name: c\nextends: b\n")).find("cycle"), std::string::npos);
}

// vllm.yaml with one text replaced.
std::string changed_profile(const std::string& from, const std::string& to) {
  std::ifstream file(kPaths.root / "scenarios" / "engines" / "vllm.yaml");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  text.replace(text.find(from), from.size(), to);
  return text;
}

constexpr const char* kPowerLimit =
    "power_limit: {product: {value: 1.16, source: measured}, narrow_product: 1.1, attention: 1.3, "
    "decodes: 1.05, share: 0.5, boost: 60 ms, full_rows: 4 ms, limited_rows: 5 ms}\n";

TEST_F(EngineProfileTest, a_profile_may_say_what_single_kernels_and_the_power_limit_take) {
  const EngineProfile plain = read_engine_profile(write("engine.yaml", changed_profile("", "")));
  EXPECT_FALSE(plain.power_limit.acts());
  EXPECT_TRUE(plain.kernel_time.kernels.empty());
  const EngineProfile profile = read_engine_profile(write(
      "engine.yaml",
      changed_profile("kernel_time:", std::string(kPowerLimit) +
                                          "kernel_time:\n  kernels: {gemm: 1.1, rope: {value: 0.9, "
                                          "source: here}}\n  uneven_attention: 7 us\n"
                                          "  uneven_attention_of_few: 4 us")));
  EXPECT_EQ(plain.power_limit.decodes, 1);
  EXPECT_EQ(profile.power_limit.decodes, 1.05);
  EXPECT_EQ(profile.kernel_time.uneven_attention.more, Seconds(7e-6));
  EXPECT_EQ(profile.kernel_time.uneven_attention.of_few, Seconds(4e-6));
  EXPECT_EQ(profile.power_limit.gemm, 1.16);
  EXPECT_EQ(profile.power_limit.boost, Seconds(60e-3));
  EXPECT_EQ(profile.sources.at("power_limit.product"), "measured");
  EXPECT_EQ(profile.kernel_time.kernels,
            (std::map<std::string, double>{{"gemm", 1.1}, {"rope", 0.9}}));
  EXPECT_EQ(profile.sources.at("kernel_time.kernels.rope"), "here");
}

TEST_F(EngineProfileTest, a_profile_may_say_what_serving_takes_besides_a_step) {
  EXPECT_EQ(read_engine_profile(write("engine.yaml", changed_profile("", ""))).serve_base,
            Seconds(0));
  const EngineProfile profile = read_engine_profile(
      write("engine.yaml", changed_profile("  scheduler_base:",
                                           "  serve_base: 11 us\n  serve_per_sequence: 0.5 us\n"
                                           "  scheduler_base:")));
  EXPECT_EQ(profile.serve_base, Seconds(11e-6));
  EXPECT_EQ(profile.serve_per_sequence, Seconds(0.5e-6));
}

TEST_F(EngineProfileTest,
       a_profile_may_say_how_attention_takes_sequences_and_what_a_new_shape_costs) {
  const EngineProfile plain = read_engine_profile(write("engine.yaml", changed_profile("", "")));
  EXPECT_EQ(plain.attention_form, AttentionForm::kSplit);
  EXPECT_EQ(plain.new_attention, Seconds(0));
  const EngineProfile profile = read_engine_profile(
      write("engine.yaml", changed_profile("  scheduler_base:",
                                           "  new_attention: {value: 38 ms, source: trace}\n"
                                           "  scheduler_base:") +
                               "attention: {form: {value: packed, source: shapes}, keys: 256}\n"));
  EXPECT_EQ(profile.new_attention, Seconds(38e-3));
  EXPECT_EQ(profile.attention_form, AttentionForm::kPacked);
  EXPECT_EQ(profile.attention_shape.queries, 1);
  EXPECT_EQ(profile.attention_shape.keys, 256);
  EXPECT_EQ(profile.sources.at("host.new_attention"), "trace");
  EXPECT_EQ(profile.sources.at("attention.form"), "shapes");
}

TEST_F(EngineProfileTest, a_wrong_key_or_time_of_an_engine_profile_says_where) {
  for (const auto& [from, to, message] : std::vector<std::array<std::string, 3>>{
           {"scheduler_base:", "scheduler_bas:", "did you mean 'scheduler_base'"},
           {"scheduler_per_sequence: {value:", "scheduler_per_sequence: {value: -1 us, was:",
            "host.scheduler_per_sequence"},
           {"per_request: {value:", "per_request: {value: 3, was:", "front_end.per_request"},
           {"per_prompt_token:", "per_prompt_tokens:", "did you mean 'per_prompt_token'"},
           {"per_output_token:", "output_token:", "did you mean 'per_output_token'"},
           {"eager_moe:", "moe:", "kernel_time"},
           {"graph: {value: ", "graph: {value: 0, was: ", "kernel_time.graph"},
           {"kernel_time:", "power_limit: {product: 0.9}\nkernel_time:", "power_limit.product"},
           {"kernel_time:", "kernel_time:\n  kernels: {gem: 1.1}", "did you mean 'gemm'"},
           {"front_end:", "attention: {form: pack}\nfront_end:", "did you mean 'packed'"},
           {"front_end:", "attention: {form: packed, keys: 0}\nfront_end:", "attention.keys"},
           {"front_end:", "attention: {from: packed}\nfront_end:", "did you mean 'form'"},
           {"stream_latency:", "latency:", "did you mean 'stream_latency'"},
           {"front_end:", "frontend:", "did you mean 'front_end'"},
           {"custom_all_reduce: custom_vllm", "custom_all_reduce: nope",
            "expected one of custom_vllm, custom_sglang, custom_trtllm, orrery"},
           {"value: mixed", "value: mixd", "did you mean 'mixed'"},
           {"value: prompt", "value: promt", "did you mean 'prompt'"},
           {"value: prompt", "value: estimated", "missing key 'new_token_ratio'"},
           {"kv_admission:", "new_token_ratio: 0.5\nkv_admission:", "belongs to kv_admission"},
           {"max_num_seqs: {value: 1024", "max_num_seqs: {value: 0", "max_num_seqs"},
           {"below: 70 GiB", "below: 70", "small_gpu.below"},
           {"architecture: ampere", "architectur: ampere", "did you mean 'architecture'"},
           {"max_num_batched_tokens: {value: 8192", "max_num_batched_tokens: {value: many",
            "max_num_batched_tokens"}}) {
    try {
      read_engine_profile(write("engine.yaml", changed_profile(from, to)));
      ADD_FAILURE() << "no error for " << to;
    } catch (const ScenarioError& error) {
      EXPECT_GT(error.line(), 0);
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  }
}

TEST_F(EngineProfileTest, a_device_states_what_differs_on_it) {
  const auto file = kPaths.root / "scenarios" / "engines" / "orrery.yaml";
  const EngineProfile base = read_engine_profile(file);
  const EngineProfile own =
      read_engine_profile(file, write("engine.orrery.yaml",
                                      "power_limit: {product: {value: 1.25, source: \"probe\"}}\n"
                                      "host: {eager_launch: {value: 5 us, source: \"probe\"}}\n"));
  EXPECT_EQ(own.power_limit.gemm, 1.25);
  EXPECT_DOUBLE_EQ(own.host.eager_launch.value(), 5e-6);
  EXPECT_EQ(own.power_limit.attention, base.power_limit.attention);
  EXPECT_EQ(own.host.d2h_sync, base.host.d2h_sync);
  EXPECT_EQ(own.sources.at("power_limit.product"), "probe");
  EXPECT_EQ(read_engine_profile(file, "no such file").power_limit.gemm, base.power_limit.gemm);
}

TEST_F(EngineProfileTest, a_device_states_nothing_of_the_scheduler) {
  EXPECT_THROW(read_engine_profile(kPaths.root / "scenarios" / "engines" / "orrery.yaml",
                                   write("engine.orrery.yaml", "max_num_seqs: 8\n")),
               ScenarioError);
}

}  // namespace
}  // namespace orrery
