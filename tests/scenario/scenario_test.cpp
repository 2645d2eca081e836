#include "sim/scenario/scenario.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "sim/scenario/machine_file.h"
#include "sim/scenario/moe_layer.h"
#include "sim/scenario/named_files.h"
#include "sim/scenario/run.h"
#include "tests/scenario/scenario_testing.h"

namespace orrery {
namespace {

using testing::kMinimal;
using testing::kPaths;
using ScenarioTest = testing::ScenarioDirectory;

std::string without_workload() {
  const std::string text = kMinimal;
  return text.substr(0, text.find("workload:"));
}

TEST_F(ScenarioTest, what_a_minimal_scenario_leaves_out_is_vllms_default) {
  const Scenario scenario = load_scenario(write("small.yaml", kMinimal), kPaths);
  EXPECT_EQ(scenario.name, "small");
  EXPECT_EQ(scenario.replicas, 1);
  EXPECT_EQ(scenario.mesh, Mesh{});
  EXPECT_EQ(scenario.engine.max_num_seqs, 1024);
  EXPECT_TRUE(scenario.engine.enable_prefix_caching);
  EXPECT_EQ(scenario.engine.block_size, 16);
  EXPECT_EQ(scenario.engine.max_model_len, 131072);  // the model's
  EXPECT_EQ(scenario.precision, Precision{});
  EXPECT_EQ(scenario.chosen_step, Batch{});
  EXPECT_EQ(scenario.machine_spec.num_gpus, 8);
}

TEST_F(ScenarioTest, a_resolved_scenario_loads_again_as_itself) {
  for (const std::string file :
       {"quickstart", "deepseek_v3_one_node", "llama_8b_closed_loop", "llama_8b_disaggregated",
        "mooncake_prefix_cache", "qwen3_30b_poisson", "qwen3_30b_expert_parallel"}) {
    const Scenario scenario = load_scenario(kPaths.root / "scenarios" / (file + ".yaml"), kPaths);
    const std::string resolved = to_yaml(scenario);
    const Scenario again = load_scenario(write(file + ".yaml", resolved), kPaths);
    EXPECT_EQ(to_yaml(again), resolved);
    EXPECT_EQ(again.mesh, scenario.mesh);
    EXPECT_EQ(again.workload, scenario.workload);
    EXPECT_EQ(again.precision, scenario.precision);
    EXPECT_EQ(again.question, scenario.question);
  }
}

TEST_F(ScenarioTest, overrides_replace_values_before_reading) {
  const Scenario scenario = load_scenario(
      write("small.yaml", kMinimal), kPaths,
      {"placement.tp=4", "seed=7", "slo.ttft=300 ms", "workload.closed_loop.concurrency=3"});
  EXPECT_EQ(scenario.mesh.tp, 4);
  EXPECT_EQ(scenario.seed, 7U);
  EXPECT_EQ(scenario.slo.ttft, Seconds(0.3));
  EXPECT_EQ(std::get<ClosedLoopWorkload>(scenario.workload.source).concurrency, 3);
}

TEST_F(ScenarioTest, requests_may_be_written_out_and_come_back) {
  const std::string text = without_workload() +
                           "workload: {requests: {arrival_s: [7, 7.5, 9], prompt_tokens: [10, 20, "
                           "30], output_tokens: [1, 2, 3]}, rate_scale: 2, num_requests: 2}\n";
  const Scenario scenario = load_scenario(write("a.yaml", text), kPaths);
  const Workload workload = make_workload(scenario.workload, scenario.seed);
  ASSERT_EQ(workload.requests.size(), 2U);
  EXPECT_EQ(workload.requests[0].arrival, Seconds(0));
  EXPECT_EQ(workload.requests[1].arrival, Seconds(0.25));  // (7.5 - 7) / 2
  EXPECT_EQ(workload.requests[1].prompt_tokens, 20);
  EXPECT_EQ(workload.requests[1].output_tokens, 2);
  const Scenario again = load_scenario(write("b.yaml", to_yaml(scenario)), kPaths);
  EXPECT_EQ(again.workload, scenario.workload);
}

TEST_F(ScenarioTest, requests_that_cannot_be_name_their_row) {
  const auto message = [&](const std::string& requests) {
    const std::string text = without_workload() + "workload: {requests: " + requests + "}\n";
    try {
      (void)load_scenario(write("a.yaml", text), kPaths);
    } catch (const ScenarioError& error) {
      return error.message();
    }
    return std::string();
  };
  EXPECT_EQ(message("{arrival_s: [1, 0], prompt_tokens: [1, 1], output_tokens: [1, 1]}"),
            "workload.requests:2: the timestamp is before that of the request above; expected "
            "ascending ones");
  EXPECT_EQ(message("{arrival_s: [1], prompt_tokens: [1, 1], output_tokens: [1]}"),
            "workload.requests: found 1 arrival_s, 2 prompt_tokens and 1 output_tokens; expected "
            "as many");
  EXPECT_EQ(message("{arrival_s: [soon], prompt_tokens: [1], output_tokens: [1]}"),
            "workload.requests.arrival_s: found 'soon'; expected a list of numbers");
  EXPECT_EQ(message("null"),
            "workload.requests: found nothing; expected a mapping with the keys arrival_s, "
            "prompt_tokens, output_tokens");
}

TEST_F(ScenarioTest, what_is_wrong_in_a_scenario_without_a_file_is_told_by_its_key) {
  YamlNode root = parse_yaml(kMinimal, "");
  const auto forget_places = [](auto& self, YamlNode& node) -> void {
    node.where = {};
    for (YamlNode::Entry& entry : node.entries) {
      entry.where = {};
      self(self, entry.value);
    }
  };
  set_value(root, "placement.tp=3");
  forget_places(forget_places, root);
  try {
    (void)read_scenario(root, "unnamed.yaml", kPaths);
    FAIL();
  } catch (const ScenarioError& error) {
    EXPECT_EQ(error.what(), error.message());
    EXPECT_EQ(error.message().find("placement: model"), 0U) << error.what();
    EXPECT_EQ(error.line(), 0);
  }
}

TEST_F(ScenarioTest, placement_and_engine_keys_reach_their_fields_and_come_back) {
  const std::string text =
      "model: {config: deepseek-v3, weights: fp8_block, activations: fp8_block}\n"
      "machine: {name: h200-cluster, num_gpus: 320}\n"
      "provider: none\n"
      "placement: {dp: 320, ep: 320, expert_comm: all_gather, num_redundant_experts: 64}\n"
      "engine: {scheduler_reserve_full_isl: false}\n"
      "workload: {closed_loop: {concurrency: 2, num_requests: 4, prompt_tokens: 10, "
      "output_tokens: 5}}\n";
  const Scenario scenario = load_scenario(write("a.yaml", text), kPaths);
  EXPECT_EQ(scenario.mesh.num_redundant_experts, 64);
  EXPECT_EQ(scenario.mesh.expert_comm, ExpertComm::kAllGather);
  EXPECT_EQ(scenario.machine_spec.num_gpus, 320);
  EXPECT_FALSE(scenario.engine.scheduler_reserve_full_isl);
  EXPECT_TRUE(scenario.kernel_tables.empty());
  const Scenario again = load_scenario(write("b.yaml", to_yaml(scenario)), kPaths);
  EXPECT_EQ(again.mesh, scenario.mesh);
  EXPECT_EQ(again.machine_spec.num_gpus, 320);
  EXPECT_FALSE(again.engine.scheduler_reserve_full_isl);
}

TEST_F(ScenarioTest, layers_cut_a_model_behind_the_first_so_many) {
  const auto text = [](const std::string& layers) {
    return "model: {config: deepseek-v3, layers: " + layers +
           "}\nmachine: single-h200\nprovider: none\n"
           "workload: {closed_loop: {concurrency: 2, num_requests: 4, prompt_tokens: 10, "
           "output_tokens: 5}}\n";
  };
  const Scenario scenario = load_scenario(write("a.yaml", text("4")), kPaths);
  EXPECT_EQ(scenario.model_config.layers.size(), 4U);
  EXPECT_EQ(model_config("cut", scenario.model_fields).layers, scenario.model_config.layers);
  const Scenario again = load_scenario(write("b.yaml", to_yaml(scenario)), kPaths);
  EXPECT_EQ(again.model_config.layers, scenario.model_config.layers);
  EXPECT_THROW(load_scenario(write("c.yaml", text("62")), kPaths), ScenarioError);
  EXPECT_THROW(load_scenario(write("d.yaml", text("0")), kPaths), ScenarioError);
}

TEST_F(ScenarioTest, experts_lie_where_the_placement_says) {
  const auto text = [](const std::string& placement, const std::string& experts,
                       const std::string& load = "{zipf: 1}") {
    return "model: {config: deepseek-v3, weights: bf16, expert_load: " + load +
           "}\n"
           "machine: {name: h200-cluster, num_gpus: 32}\n"
           "provider: none\n"
           "moe: {design: shuffling, experts: " +
           experts +
           "}\n"
           "placement: {" +
           placement +
           "}\n"
           "workload: {closed_loop: {concurrency: 2, num_requests: 4, prompt_tokens: 10, "
           "output_tokens: 5}}\n";
  };
  const auto loaded = [&](const std::string& placement, const std::string& experts = "in_order") {
    return load_scenario(write("a.yaml", text(placement, experts)), kPaths);
  };
  const std::string flow = "dp: 16, ep: 16, expert_comm: eager";
  const Scenario in_order = loaded(flow);
  EXPECT_EQ(in_order.mesh.expert_load, in_order.expert_shares);
  EXPECT_TRUE(in_order.mesh.split_shared_expert);
  const Scenario copied =
      loaded(flow + ", num_redundant_experts: 16, split_shared_expert: false", "balanced_on_nodes");
  EXPECT_EQ(copied.mesh.expert_load.shares.size(), 256U + 16U);
  EXPECT_FALSE(copied.mesh.split_shared_expert);
  const Scenario again = load_scenario(write("b.yaml", to_yaml(copied)), kPaths);
  EXPECT_EQ(again.mesh, copied.mesh);

  const auto says = [&](const std::string& placement, const std::string& problem,
                        const std::string& experts = "in_order") {
    try {
      (void)loaded(placement, experts);
      ADD_FAILURE() << placement << " loads";
    } catch (const ScenarioError& error) {
      EXPECT_NE(std::string(error.what()).find(problem), std::string::npos) << error.what();
    }
  };
  says("dp: 16, ep: 16", "expert_comm is not said");
  says("dp: 16, ep: 16, expert_comm: all_to_all",
       "expected eager, graph, tokens, dedup, dedup_graph or copies");
  says("dp: 16, ep: 16, expert_comm: dedup", "expected two levels");
  says("dp: 16, ep: 8, expert_comm: eager", "expected a multiple of dp");
  says(flow + ", num_redundant_experts: 3", "does not divide the 256 routed and 3 redundant");
  says("dp: 4, tp: 4, ep: 16, expert_comm: eager", "expected whole nodes", "balanced_on_nodes");
  EXPECT_THROW(
      (void)load_scenario(write("c.yaml", text(flow, "balanced", "{trace: none.csv}")), kPaths),
      ScenarioError);
}

TEST_F(ScenarioTest, tokens_of_experts_go_in_chunks) {
  const auto text = [](const std::string& moe, const std::string& placement) {
    return "model: {config: qwen3-30b-a3b}\nmachine: hgx-h200\nprovider: none\nmoe: {" + moe +
           "}\nplacement: {" + placement +
           "}\nworkload: {closed_loop: {concurrency: 2, num_requests: 4, prompt_tokens: 10, "
           "output_tokens: 5}}\n";
  };
  const std::string flow = "dp: 8, ep: 8, expert_comm: eager";
  const auto loaded = [&](const std::string& moe, const std::string& placement) {
    return load_scenario(write("a.yaml", text(moe, placement)), kPaths);
  };
  const Scenario scenario = loaded("design: shuffling, chunks: 2", flow);
  EXPECT_EQ(scenario.mesh.moe_chunks, 2);
  EXPECT_EQ(load_scenario(write("b.yaml", to_yaml(scenario)), kPaths).moe, scenario.moe);
  const Scenario plain = loaded("design: shuffling, chunks: 1", flow);
  EXPECT_EQ(to_yaml(plain).find("chunks"), std::string::npos);
  EXPECT_NO_THROW(static_cast<void>(run_scenario(scenario)));

  const auto says = [&](const std::string& problem, const std::string& moe,
                        const std::string& placement) {
    try {
      static_cast<void>(loaded(moe, placement));
      ADD_FAILURE() << moe << " " << placement << " loads";
    } catch (const ScenarioError& error) {
      EXPECT_NE(std::string(error.what()).find(problem), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("moe"), std::string::npos) << error.what();
    }
  };
  for (const char* chunks : {"0", "-1", "65", "1.5", "two"}) {
    says(chunks, std::string("design: shuffling, chunks: ") + chunks, flow);
  }
  says("dp of at least 2", "design: shuffling, chunks: 2", "tp: 8, ep: 8");
  says("expected design shuffling", "design: fused, chunks: 2", "dp: 8, ep: 8");
  says("expected design shuffling", "design: persistent, chunks: 2", "dp: 8, ep: 8");
  says("expert_comm eager, graph or copies", "design: shuffling, chunks: 2",
       "dp: 8, ep: 8, expert_comm: tokens");
  says("two_batch_overlap false", "design: shuffling, chunks: 2",
       flow + ", two_batch_overlap: true");
}

TEST_F(ScenarioTest, rows_of_experts_may_be_copied_on_one_host) {
  const auto loaded = [&](const std::string& placement, const std::string& machine = "hgx-h200",
                          const std::string& design = "shuffling") {
    return load_scenario(
        write("a.yaml",
              "model: {config: qwen3-30b-a3b}\nmachine: " + machine +
                  "\nprovider: none\nmoe: {design: " + design + "}\nplacement: {" + placement +
                  "}\nworkload: {closed_loop: {concurrency: 2, num_requests: 4, prompt_tokens: "
                  "10, output_tokens: 5}}\n"),
        kPaths);
  };
  const Scenario scenario = loaded("dp: 8, ep: 8, expert_comm: copies");
  EXPECT_EQ(scenario.mesh.expert_comm, ExpertComm::kCopies);
  EXPECT_EQ(load_scenario(write("b.yaml", to_yaml(scenario)), kPaths).mesh, scenario.mesh);
  EXPECT_NO_THROW(static_cast<void>(run_scenario(scenario)));
  const std::string cluster = "{name: h200-cluster, num_gpus: 16}";
  EXPECT_NO_THROW(static_cast<void>(
      loaded("dp: 4, tp: 2, ep: 4, pp: 2, num_micro_batches: 2, expert_comm: copies", cluster)));

  const auto says = [&](const std::string& problem, const auto&... keys) {
    try {
      static_cast<void>(loaded(keys...));
      ADD_FAILURE() << "loads, expected " << problem;
    } catch (const ScenarioError& error) {
      EXPECT_NE(std::string(error.what()).find(problem), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("placement"), std::string::npos) << error.what();
    }
  };
  says("several hosts of 8 GPUs", "dp: 16, ep: 16, expert_comm: copies", cluster);
  says("with dp 1", "tp: 8, ep: 8, expert_comm: copies");
  says("two_batch_overlap false", "dp: 8, ep: 8, expert_comm: copies, two_batch_overlap: true");
  says("sp false", "dp: 4, tp: 2, ep: 8, expert_comm: copies, sp: true");
  says("which is of design shuffling", "dp: 8, ep: 8, expert_comm: copies", "hgx-h200", "fused");
}

TEST_F(ScenarioTest, experts_have_a_capacity_where_one_kernel_drops_what_exceeds_it) {
  const auto loaded = [&](const std::string& moe, const std::string& placement = "dp: 8, ep: 8") {
    const std::string text =
        "model: {config: qwen3-30b-a3b, expert_load: uniform}\nmachine: hgx-h200\nprovider: "
        "none\nengine: {profile: orrery}\nplacement: {" +
        placement + "}\nmoe: {" + moe +
        "}\nworkload: {closed_loop: {concurrency: 2, num_requests: 4, prompt_tokens: 10, "
        "output_tokens: 5}}\n";
    return load_scenario(write("a.yaml", text), kPaths);
  };
  const Scenario scenario = loaded("design: persistent, capacity_factor: 1.25");
  EXPECT_EQ(scenario.moe.capacity_percent, 125);
  EXPECT_EQ(lowering_options(scenario).capacity_percent, 125);
  EXPECT_NE(to_yaml(scenario).find("capacity_factor: 1.25"), std::string::npos);
  EXPECT_EQ(load_scenario(write("b.yaml", to_yaml(scenario)), kPaths).moe, scenario.moe);
  EXPECT_EQ(to_yaml(loaded("design: persistent")).find("capacity"), std::string::npos);
  EXPECT_NO_THROW(static_cast<void>(run_scenario(scenario)));

  const auto says = [&](const std::string& problem, const std::string& moe) {
    try {
      static_cast<void>(loaded(moe, "dp: 1"));
      ADD_FAILURE() << moe << " loads";
    } catch (const ScenarioError& error) {
      EXPECT_NE(std::string(error.what()).find(problem), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("moe"), std::string::npos) << error.what();
    }
  };
  for (const char* const factor : {"0", "-1", "512.5", ".nan", "nan", ".inf", "much", "'1'"}) {
    says("expected a number above 0 and at most 512",
         std::string("design: persistent, capacity_factor: ") + factor);
  }
  says("found '1.255'; expected hundredths, such as 1.25 or 1.26",
       "design: persistent, capacity_factor: 1.255");
  says("found '0.001'; expected hundredths, such as 0.01 or 0.02",
       "design: persistent, capacity_factor: 0.001");
  for (const char* const design : {"shuffling", "padding", "slicing", "concatenation", "fused"}) {
    says("expected design persistent",
         std::string("design: ") + design + ", capacity_factor: 1.25");
  }
}

// Busy ranks keep the others waiting; experts that are dealt out by their load take that away.
TEST_F(ScenarioTest, one_kernel_is_priced_by_its_load_and_its_order) {
  const auto time = [&](const std::string& load, const std::string& moe) {
    const std::string text =
        "model: {config: qwen3-30b-a3b, expert_load: " + load +
        "}\nmachine: hgx-h200\nprovider: orrery\nplacement: {dp: 4, ep: 4}\nmoe: {design: "
        "persistent, experts: " +
        moe + "}\nworkload: {offline: {num_requests: 1, prompt_tokens: 10, output_tokens: 1}}\n";
    return simulate_moe_layer(load_scenario(write("a.yaml", text), kPaths), {.tokens = 16384})
        .duration;
  };
  const Seconds even = time("uniform", "in_order");
  EXPECT_EQ(time("uniform", "balanced"), even);
  const Seconds in_order = time("{zipf: 1.0}", "in_order");
  const Seconds balanced = time("{zipf: 1.0}", "balanced");
  EXPECT_GT(in_order, even * 1.15);
  EXPECT_GT(balanced, even);
  EXPECT_LT(balanced, in_order * 0.95);
}

TEST_F(ScenarioTest, one_kernel_says_that_it_is_priced_by_the_load_of_the_beginning) {
  const auto says_so = [&](const std::string& load) {
    const std::string text =
        "model: {config: qwen3-30b-a3b, expert_load: " + load +
        "}\nmachine: hgx-h200\nprovider: none\nengine: {profile: orrery}\nplacement: {dp: 2, ep: "
        "2}\nmoe: {design: persistent}\nworkload: {closed_loop: {concurrency: 2, num_requests: 4, "
        "prompt_tokens: 10, output_tokens: 5}}\n";
    const RunResult run = run_scenario(load_scenario(write("a.yaml", text), kPaths));
    return std::ranges::any_of(run.warnings, [](const std::string& warning) {
      return warning.find("that a run begins with") != std::string::npos;
    });
  };
  EXPECT_TRUE(says_so("{zipf: 1.0, drift: {interval: 1 s, share: 0.5}}"));
  EXPECT_FALSE(says_so("{zipf: 1.0}"));
  EXPECT_FALSE(says_so("uniform"));
}

TEST_F(ScenarioTest, experts_are_placed_anew_and_their_load_drifts) {
  const std::string head =
      "machine: hgx-h200\nprovider: none\nengine: {profile: orrery}\n"
      "workload: {closed_loop: {concurrency: 2, num_requests: 4, prompt_tokens: 10, "
      "output_tokens: 5}}\n";
  const auto text = [&](const std::string& load, const std::string& eplb,
                        const std::string& placement = "dp: 8, ep: 8, expert_comm: eager") {
    return "model: {config: qwen3-30b-a3b, expert_load: " + load + "}\nmoe: {design: shuffling" +
           eplb + "}\nplacement: {" + placement + "}\n" + head;
  };
  const std::string drift = "{zipf: 1, drift: {interval: 5 s, share: 0.1}}";
  const std::string eplb = ", eplb: {step_interval: 200, layers_per_step: 4}";
  const Scenario scenario = load_scenario(write("a.yaml", text(drift, eplb)), kPaths);
  EXPECT_EQ(scenario.expert_drift.interval, Seconds(5));
  EXPECT_EQ(scenario.expert_drift.share, 0.1);
  EXPECT_EQ(scenario.moe.eplb, (EplbConfig{.step_interval = 200, .layers_per_step = 4}));
  const Scenario again = load_scenario(write("b.yaml", to_yaml(scenario)), kPaths);
  EXPECT_EQ(again.expert_load, scenario.expert_load);
  EXPECT_EQ(again.moe, scenario.moe);

  std::string trace = "interval,expert,count\n";
  for (int expert = 0; expert < 16; ++expert) {
    trace += "0," + std::to_string(expert) + ",10\n1," + std::to_string(expert + 16) + ",10\n";
  }
  write("trace.csv", trace);
  const Scenario traced = load_scenario(
      write("c.yaml", text("{trace: trace.csv, drift: {interval: 2 s}}", eplb)), kPaths);
  ASSERT_EQ(traced.expert_drift.loads.size(), 2U);
  EXPECT_EQ(traced.expert_shares, traced.expert_drift.loads[0]);
  EXPECT_EQ(traced.expert_drift.loads[1].shares[0], 0);

  const auto says = [&](const std::string& problem, const std::string& of) {
    try {
      (void)load_scenario(write("d.yaml", of), kPaths);
      ADD_FAILURE() << problem << ": loads";
    } catch (const ScenarioError& error) {
      EXPECT_NE(std::string(error.what()).find(problem), std::string::npos) << error.what();
    }
  };
  says("at least 1", text(drift, ", eplb: {step_interval: 0}"));
  says("at least 1", text(drift, ", eplb: {window_size: 0}"));
  says("above 0", text("{zipf: 1, drift: {interval: 5 s, share: 0}}", ""));
  says("expected a zipf above 0", text("{zipf: 0, drift: {interval: 5 s, share: 0.1}}", ""));
  says("expected share", text("{zipf: 1, drift: {interval: 5 s}}", ""));
  says("missing key 'interval'", text("{zipf: 1, drift: {share: 0.1}}", ""));
  says("expected model.expert_load", text("uniform", eplb));
  says("expected placement.ep: 8", text("{zipf: 1}", eplb, "tp: 8"));
  says("expected at most 896",
       text("{zipf: 1}", eplb, "dp: 8, ep: 8, expert_comm: eager, num_redundant_experts: 904"));
  says("expected placement.ep of at least 2", text(drift, "", "tp: 4"));
  says("drift: {interval: TIME} without a share",
       text("{trace: trace.csv, drift: {interval: 2 s, share: 0.1}}", ""));
}

TEST_F(ScenarioTest, a_chosen_step_is_a_batch_or_the_median_decode_step) {
  const std::string head = kMinimal;
  const Scenario scenario = load_scenario(
      write("a.yaml", head + "chosen_step: {prefill: [{query: 100, context: 28}], num_decodes: 2, "
                             "decode_context: 50}\n"),
      kPaths);
  ASSERT_EQ(scenario.chosen_step.prefill.size(), 1U);
  EXPECT_EQ(scenario.chosen_step.prefill[0].context, 28);
  EXPECT_EQ(scenario.chosen_step.decode_context, 50);
  EXPECT_THROW(load_scenario(write("b.yaml", head + "chosen_step: slowest\n"), kPaths),
               ScenarioError);
  EXPECT_THROW(load_scenario(write("c.yaml", head + "chosen_step: {}\n"), kPaths), ScenarioError);
  // Two sequences cannot have one token of context between them.
  EXPECT_THROW(
      load_scenario(write("d.yaml", head + "chosen_step: {num_decodes: 2, decode_context: 1}\n"),
                    kPaths),
      ScenarioError);
}

TEST_F(ScenarioTest, lengths_are_fixed_uniform_or_log_normal) {
  const std::string text =
      "poisson: {requests_per_s: 2, num_requests: 9, prompt_tokens: {min: 10, max: 30}, "
      "output_tokens: {mean: 50, cv: 0.5, max: 400}}\n";
  const WorkloadSpec spec = read_workload(parse_yaml(text, "f.yaml"), "/", "/");
  const auto& arrivals = std::get<ArrivalWorkload>(spec.source);
  EXPECT_EQ(arrivals.cv, 1);
  EXPECT_EQ(arrivals.prompt_tokens.kind, LengthKind::kUniform);
  EXPECT_EQ(arrivals.output_tokens.kind, LengthKind::kLogNormal);
  EXPECT_EQ(arrivals.output_tokens.min, 1);
  for (const std::string lengths :
       {"{values: []}", "{values: [0]}", "{values: [3], min: 1}", "{p50: 9, p99: 4, max: 20}",
        "{p50: 9, max: 20}", "0", "{min: 5, max: 4}", "{mean: 5, max: 9}",
        "{mean: 5, cv: -1, max: 9}", "[3]"}) {
    const std::string bad =
        "closed_loop: {concurrency: 1, num_requests: 1, output_tokens: 1, "
        "prompt_tokens: " +
        lengths + "}\n";
    EXPECT_THROW(read_workload(parse_yaml(bad, "f.yaml"), "/", "/"), ScenarioError) << lengths;
  }
}

TEST_F(ScenarioTest, lengths_may_be_given_as_values_or_by_quantiles) {
  const WorkloadSpec spec = read_workload(
      parse_yaml("closed_loop: {concurrency: 1, num_requests: 2, prompt_tokens: {values: [9, 4]}, "
                 "output_tokens: {p50: 100, p99: 1000, max: 5000}}\n",
                 "f.yaml"),
      "/", "/");
  const auto& loop = std::get<ClosedLoopWorkload>(spec.source);
  EXPECT_EQ(loop.prompt_tokens.min, 4);
  EXPECT_EQ(loop.prompt_tokens.max, 9);
  EXPECT_NEAR(loop.output_tokens.log_spread, std::log(10) / 2.3263, 1e-4);
  EXPECT_EQ(read_workload(parse_yaml(to_yaml(spec, "/"), "f.yaml"), "/", "/"), spec);
}

TEST_F(ScenarioTest, more_than_two_of_mean_cv_p50_and_p99_are_refused) {
  for (const std::string lengths :
       {"{mean: 10, p50: 5, cv: 1, max: 90}", "{mean: 10, p50: 5, p99: 40, max: 90}",
        "{p50: 5, p99: 40, cv: 1, max: 90}", "{mean: 10, p99: 40, max: 90}",
        "{mean: 10, max: 90}"}) {
    const std::string text =
        "offline: {num_requests: 1, output_tokens: 1, prompt_tokens: " + lengths + "}\n";
    try {
      static_cast<void>(read_workload(parse_yaml(text, "f.yaml"), "/", "/"));
      ADD_FAILURE() << lengths << " was accepted";
    } catch (const ScenarioError& error) {
      EXPECT_NE(error.message().find("mean and cv, mean and p50, or p50 and p99"),
                std::string::npos)
          << error.what();
    }
  }
}

TEST_F(ScenarioTest, every_form_of_lengths_is_written_as_it_was_given) {
  for (const std::string lengths :
       {"{mean: 10, cv: 0.5, min: 1, max: 90}", "{mean: 10, p50: 8, min: 1, max: 90}",
        "{p50: 5, p99: 40, min: 1, max: 90}"}) {
    const std::string text =
        "offline: {num_requests: 1, prompt_tokens: " + lengths + ", output_tokens: 1}\n";
    const WorkloadSpec spec = read_workload(parse_yaml(text, "f.yaml"), "/", "/");
    EXPECT_NE(to_yaml(spec, "/").find(lengths), std::string::npos) << to_yaml(spec, "/");
  }
}

TEST_F(ScenarioTest, lengths_of_which_many_are_cut_off_are_warned_of) {
  const auto warnings = [](const std::string& lengths) {
    const std::string text =
        "offline: {num_requests: 1, prompt_tokens: " + lengths + ", output_tokens: 1}\n";
    return warnings_of(read_workload(parse_yaml(text, "f.yaml"), "/", "/"));
  };
  EXPECT_TRUE(warnings("{mean: 2000, cv: 1, max: 8192}").empty());
  EXPECT_TRUE(warnings("64").empty());
  ASSERT_EQ(warnings("{mean: 2000, cv: 0.8, max: 4096}").size(), 1U);
  EXPECT_NE(warnings("{mean: 2000, cv: 0.8, max: 4096}")[0].find("of the lengths are max, 4096"),
            std::string::npos);
}

TEST_F(ScenarioTest, a_static_batch_whose_one_step_does_not_fit_is_refused) {
  const auto run = [&](const std::string& batch) {
    std::string text = kMinimal;
    text.replace(
        text.find("workload:"), std::string::npos,
        "workload: {static_batch: {batch: " + batch + ", prompt_tokens: 100, output_tokens: 2}}\n");
    return run_scenario(load_scenario(write("a.yaml", text), kPaths));
  };
  EXPECT_NO_THROW(run("1000"));
  // 500,000 tokens in one step: 51 GB of activations, beside which too few KV blocks are left.
  EXPECT_THROW(run("5000"), ScenarioError);
}

TEST_F(ScenarioTest, what_only_models_with_experts_have_is_refused_of_others) {
  for (const std::string set :
       {"model.expert_load={zipf: 1}", "model.expert_load={trace: none.csv}",
        "moe={fuse_scatter_add: true}", "moe={fuse_gather: true}", "moe={streams: 2}",
        "moe={chunks: 2}"}) {
    try {
      static_cast<void>(load_scenario(write("a.yaml", kMinimal), kPaths, {set}));
      ADD_FAILURE() << set << " was accepted";
    } catch (const ScenarioError& error) {
      EXPECT_NE(error.message().find("no routed experts"), std::string::npos) << error.what();
    }
  }
}

TEST_F(ScenarioTest, a_token_budget_below_max_num_seqs_is_reported_where_it_stands) {
  const std::filesystem::path file = write(
      "a.yaml", std::string(kMinimal) + "engine: {max_num_seqs: 9, max_num_batched_tokens: 8}\n");
  try {
    static_cast<void>(load_scenario(file, kPaths));
    ADD_FAILURE() << "accepted";
  } catch (const ScenarioError& error) {
    EXPECT_EQ(error.line(), 5);
    EXPECT_NE(error.message().find("engine.max_num_batched_tokens: found 8; expected at least"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(ScenarioTest, a_value_that_was_set_is_reported_as_set) {
  try {
    static_cast<void>(load_scenario(write("a.yaml", std::string(kMinimal) + "placement: {tp: 2}\n"),
                                    kPaths, {"placement.tp=16"}));
    ADD_FAILURE() << "accepted";
  } catch (const ScenarioError& error) {
    EXPECT_NE(error.message().find("(with --set placement.tp=16)"), std::string::npos)
        << error.what();
  }
}

TEST_F(ScenarioTest, more_requests_than_memory_holds_are_refused) {
  const std::string text =
      "offline: {num_requests: 100000000, prompt_tokens: 1, output_tokens: 1}\n";
  EXPECT_THROW(read_workload(parse_yaml(text, "f.yaml"), "/", "/"), ScenarioError);
}

TEST_F(ScenarioTest, a_closed_loop_may_repeat_its_prompts) {
  std::string text = kMinimal;
  text.replace(text.find("num_requests: 4,"), 16, "num_requests: 4, distinct_prompts: 3,");
  const Scenario scenario = load_scenario(write("a.yaml", text), kPaths);
  EXPECT_EQ(std::get<ClosedLoopWorkload>(scenario.workload.source).distinct_prompts, 3);
  EXPECT_EQ(to_yaml(load_scenario(write("b.yaml", to_yaml(scenario)), kPaths)), to_yaml(scenario));
  EXPECT_EQ(make_workload(scenario.workload, 1).hash_block_tokens, 64);
}

TEST_F(ScenarioTest, offline_and_static_batches_are_workloads) {
  const WorkloadSpec queue = read_workload(
      parse_yaml("offline: {num_requests: 9, prompt_tokens: 7, output_tokens: {min: 2, max: 4}}\n",
                 "f.yaml"),
      "/", "/");
  EXPECT_EQ(read_workload(parse_yaml(to_yaml(queue, "/"), "f.yaml"), "/", "/"), queue);
  const Workload requests = make_workload(queue, 1);
  EXPECT_EQ(requests.requests.size(), 9U);
  EXPECT_TRUE(requests.is_offline);
  EXPECT_FALSE(requests.is_static_batch);
  const WorkloadSpec batch = read_workload(
      parse_yaml("static_batch: {batch: 4, prompt_tokens: 7, output_tokens: 3}\n", "f.yaml"), "/",
      "/");
  EXPECT_EQ(read_workload(parse_yaml(to_yaml(batch, "/"), "f.yaml"), "/", "/"), batch);
  EXPECT_TRUE(make_workload(batch, 1).is_static_batch);
  for (const std::string bad :
       {"offline: {batch: 4, prompt_tokens: 7, output_tokens: 3}",
        "static_batch: {num_requests: 4, prompt_tokens: 7, output_tokens: 3}",
        "static_batch: {batch: 0, prompt_tokens: 7, output_tokens: 3}",
        "offline: {num_requests: 4, prompt_tokens: 7}",
        "{offline: {num_requests: 1, prompt_tokens: 7, output_tokens: 1}, num_requests: 3}"}) {
    EXPECT_THROW(read_workload(parse_yaml(bad, "f.yaml"), "/", "/"), ScenarioError) << bad;
  }
}

TEST_F(ScenarioTest, a_path_is_looked_up_beside_the_scenario_before_the_project) {
  write("here.csv", "x");
  EXPECT_EQ(resolve_path("here.csv", directory_, kPaths.root), directory_ / "here.csv");
  EXPECT_EQ(resolve_path("scenarios/quickstart.yaml", directory_, kPaths.root),
            kPaths.root / "scenarios/quickstart.yaml");
  EXPECT_TRUE(resolve_path("nowhere.csv", directory_, kPaths.root).empty());
  EXPECT_TRUE(resolve_path("", directory_, kPaths.root).empty());
}

TEST(MachineFile, every_shipped_machine_loads_and_builds) {
  const std::filesystem::path topologies = kPaths.root / "topologies";
  const std::vector<std::string> names = machine_names(topologies);
  EXPECT_FALSE(names.empty());
  for (const std::string& name : names) {
    const MachineFile file = read_machine(topologies / (name + ".yaml"), topologies);
    EXPECT_GT(file.spec.device.hbm_capacity.value(), 0) << name;
    EXPECT_FALSE(file.spec.device.sources.empty()) << name;
    EXPECT_EQ(make_machine(file.spec).num_gpus(), file.spec.num_gpus) << name;
  }
}

TEST_F(ScenarioTest, an_unknown_device_names_the_known_ones) {
  const auto file = write("m.yaml",
                          "kind: nvswitch_node\ndevice: h201-sxm\nnum_gpus: 8\n"
                          "nvlink_rate: 450 GB/s\nnvlink_latency: 1 us\n");
  try {
    read_machine(file, kPaths.root / "topologies");
    FAIL() << "no error";
  } catch (const ScenarioError& error) {
    EXPECT_EQ(error.line(), 2);
    EXPECT_NE(std::string(error.what()).find("did you mean 'h200-sxm'"), std::string::npos)
        << error.what();
  }
}

StepRecord decode_step(double duration_s, std::int64_t num_steps, std::int64_t num_decodes) {
  StepRecord step;
  step.duration = Seconds(duration_s);
  step.num_steps = num_steps;
  step.num_decodes = num_decodes;
  step.decode_context = 100 * num_decodes;
  return step;
}

TEST(MedianDecodeStep, counts_each_step_of_a_fast_forward) {
  // Per step: 1 s (once), 2 s (five times), 9 s (three times). Of nine steps the fifth is a 2 s
  // one.
  std::vector<StepRecord> steps = {decode_step(1, 1, 1), decode_step(27, 3, 3),
                                   decode_step(10, 5, 2)};
  EXPECT_EQ(median_decode_step({.steps = steps}).num_decodes, 2);
  EXPECT_EQ(median_decode_step({.steps = steps}).decode_context, 200);
}

TEST(MedianDecodeStep, leaves_steps_with_prefill_aside_unless_there_are_no_others) {
  StepRecord prefill = decode_step(100, 50, 0);
  prefill.num_prefills = 2;
  prefill.prefill_tokens = 101;
  EXPECT_EQ(median_decode_step({.steps = {prefill, decode_step(1, 1, 4)}}).num_decodes, 4);
  const Batch batch = median_decode_step({.steps = {prefill}});
  ASSERT_EQ(batch.prefill.size(), 2U);  // 101 tokens in two chunks: 51 and 50
  EXPECT_EQ(batch.prefill[0].query + batch.prefill[1].query, 101);
}

}  // namespace
}  // namespace orrery
