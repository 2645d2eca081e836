// Attention and FFNs of a placement on machines of their own.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sim/scenario/assembly.h"
#include "sim/scenario/costs.h"
#include "sim/scenario/explain.h"
#include "sim/scenario/run.h"
#include "sim/scenario/service_costs.h"
#include "sim/scenario/validation.h"
#include "tests/scenario/scenario_testing.h"

namespace orrery {
namespace {

using testing::kPaths;

constexpr const char* kLink = ", transfer: {rate: 50 GB/s, latency: 3 us}";
const Batch kDecodes{.num_decodes = 256, .decode_context = 256 * 1000};

class FfnMachineTest : public testing::ScenarioDirectory {
 protected:
  // Eight GPUs of attention, eight with an expert each. `ffn`: what placement.ffn has; empty: none.
  Scenario scenario(const std::string& machine, const std::string& ffn,
                    const std::string& more = "") const {
    const std::string own = ffn.empty() ? "" : ", ffn: {" + ffn + "}";
    return load_scenario(
        write("pair.yaml",
              "model: {config: mixtral-8x22b-v0.1}\nprovider: vllm-0.24.0\nmachine: " + machine +
                  "\nplacement: {dp: 8, ep: 8, ffn_instances: 8, num_micro_batches: 3" + own +
                  "}\nengine: {max_num_seqs: 64, max_num_batched_tokens: 512}\n"
                  "workload: {closed_loop: {concurrency: 32, num_requests: 64, prompt_tokens: 100, "
                  "output_tokens: 8}}\n" +
                  more),
        kPaths);
  }
  Scenario pair(const std::string& machine, const std::string& ffn) const {
    return scenario(machine, "machine: " + ffn + kLink);
  }
  std::string refusal(const std::string& machine, const std::string& ffn,
                      const std::string& more = "") const {
    try {
      run_scenario(scenario(machine, ffn, more));
    } catch (const ScenarioError& error) {
      return error.what();
    }
    return "(served)";
  }
};

// Ops of the first rank of each side, without exchanges.
std::vector<ExplainedOp> ops_of(const StepExplanation& step, bool is_ffn) {
  std::vector<ExplainedOp> found;
  for (const ExplainedOp& op : step.ops) {
    if (op.name.find("_ffn") != std::string::npos) continue;
    const bool is_of_experts = op.call.starts_with("moe ");
    if (is_of_experts == is_ffn) found.push_back(op);
  }
  return found;
}

void expect_equal_prices(const std::vector<ExplainedOp>& a, const std::vector<ExplainedOp>& b) {
  ASSERT_FALSE(a.empty());
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_EQ(a[i].price.price.time, b[i].price.price.time) << a[i].name;
    EXPECT_EQ(a[i].price.device, b[i].price.device) << a[i].name;
  }
}

TEST_F(FfnMachineTest, ASecondMachineOfTheSameKindTakesWhatOneTakes) {
  const Scenario one = scenario("{name: h800-cluster, num_gpus: 16}", "");
  const Scenario two =
      scenario("{name: h800-cluster, num_gpus: 8}", "machine: {name: h800-cluster, num_gpus: 8}");
  const StepExplanation a = explain_step(one, kDecodes);
  const StepExplanation b = explain_step(two, kDecodes);
  EXPECT_NEAR(b.duration / a.duration, 1, 1e-12);
  EXPECT_NEAR(b.sides[1].bubble / a.sides[1].bubble, 1, 1e-9);
  const ServingMetrics of_one = run_scenario(one).service.metrics;
  const ServingMetrics of_two = run_scenario(two).service.metrics;
  EXPECT_NEAR(of_two.ttft_s.mean / of_one.ttft_s.mean, 1, 1e-9);
  EXPECT_NEAR(of_two.tpot_s.mean / of_one.tpot_s.mean, 1, 1e-9);
  EXPECT_EQ(memory_budget(one).num_kv_blocks, memory_budget(two).num_kv_blocks);
}

TEST_F(FfnMachineTest, EachRanksKernelsArePricedByTheTablesOfItsDevice) {
  const StepExplanation mixed = explain_step(pair("hgx-h20", "hgx-h800"), kDecodes);
  const StepExplanation h20 = explain_step(pair("hgx-h20", "hgx-h20"), kDecodes);
  const StepExplanation h800 = explain_step(pair("hgx-h800", "hgx-h800"), kDecodes);
  expect_equal_prices(ops_of(mixed, false), ops_of(h20, false));
  expect_equal_prices(ops_of(mixed, true), ops_of(h800, true));
  // An H20 computes 148 TFLOP/s, an H800 989.
  EXPECT_GT(ops_of(h20, true).front().price.price.time,
            ops_of(h800, true).front().price.price.time);
  EXPECT_LT(mixed.duration, h20.duration);
  EXPECT_GE(mixed.duration, h800.duration * 0.9);
}

// Each of eight GPUs sends what one of the eight others gets.
TEST_F(FfnMachineTest, AnExchangeTakesTheSlowerWayOfBothMachines) {
  const auto exchange = [&](const std::string& ffn) {
    const StepExplanation step = explain_step(scenario("hgx-h200", ffn), kDecodes);
    const auto found = std::ranges::find_if(step.ops, [](const ExplainedOp& op) {
      return op.name.find("to_ffn") != std::string::npos;
    });
    return found->price.price.time.value();
  };
  const std::string machine = "machine: hgx-h200, transfer: ";
  const double fast = exchange(machine + "{rate: 100 GB/s, latency: 0 s}");
  const double slow = exchange(machine + "{rate: 50 GB/s, latency: 0 s}");
  const double late = exchange(machine + "{rate: 100 GB/s, latency: 40 us}");
  constexpr double kStep = 10e-6;  // software of a step between nodes
  EXPECT_NEAR(slow - kStep, 2 * (fast - kStep), 1e-12);
  EXPECT_NEAR(late - fast, 40e-6, 1e-12);
  // By the networks: that of the machine with the slower NICs, at the share that calls get of it.
  const auto cluster = [&](const std::string& name, const std::string& rate) {
    return write(name + ".yaml",
                 "name: " + name + "\nkind: rail_fat_tree\ndevice: h200-sxm\nnum_gpus: 16\n" +
                     "nvlink_rate: 450 GB/s\nnvlink_latency: 0.6 us\nnic_rate: " + rate +
                     "\nnic_latency: 3 us\nswitch_latency: 0 s\n")
        .string();
  };
  const auto networks = [&](const std::string& front, const std::string& behind) {
    const StepExplanation step = explain_step(scenario(front, "machine: " + behind), kDecodes);
    const auto found = std::ranges::find_if(step.ops, [](const ExplainedOp& op) {
      return op.name.find("to_ffn") != std::string::npos;
    });
    return found->price.price.time.value() - kStep - 3e-6;
  };
  const std::string narrow = cluster("narrow", "25 GB/s");
  const std::string wide = cluster("wide", "50 GB/s");
  const double both_wide = networks(wide, wide);
  EXPECT_NEAR(networks(narrow, wide), 2 * both_wide, 1e-12);
  EXPECT_NEAR(networks(wide, narrow), 2 * both_wide, 1e-12);
  EXPECT_NEAR(both_wide, (slow - kStep) * 50.0 / 47.0, 1e-12);
}

TEST_F(FfnMachineTest, MemoryIsThatOfEachSidesDevice) {
  const MemoryBudget h20 = memory_budget(pair("hgx-h20", "hgx-h20"));
  EXPECT_EQ(memory_budget(pair("hgx-h20", "hgx-h200")).num_kv_blocks, h20.num_kv_blocks);
  EXPECT_GT(memory_budget(pair("hgx-h200", "hgx-h20")).num_kv_blocks, h20.num_kv_blocks);
  // An expert of all 56 layers is 33.8 GB in bf16, more than an L4 has.
  const std::string message =
      refusal("hgx-h200", "machine: {name: l4-node, num_gpus: 8}" + std::string(kLink));
  EXPECT_NE(message.find("FFNs of mixtral-8x22b-v0.1 do not fit on l4"), std::string::npos)
      << message;
}

TEST_F(FfnMachineTest, CostsAndEnergyAreThoseOfBothKinds) {
  const RunResult run = run_scenario(pair("hgx-h100", "hgx-h200"));
  const double h100 = usd_per_gpu_hour(run.scenario.machine_spec);
  const double h200 = usd_per_gpu_hour(run.scenario.ffn->setting.machine_spec);
  EXPECT_NE(h100, h200);
  EXPECT_DOUBLE_EQ(usd_per_hour(run.scenario), 8 * h100 + 8 * h200);
  const ServingMetrics& metrics = run.service.metrics;
  const auto energy = service_energy(run.scenario, run.num_gpus, metrics);
  const auto waiting = [&](const MachineSetting& setting) {
    return (setting.machine_spec.device.power->waiting * metrics.duration).value() * 8;
  };
  EXPECT_NEAR(
      energy->all.value(),
      waiting(run.scenario) + waiting(run.scenario.ffn->setting) + metrics.work_energy.value(),
      1e-9 * energy->all.value());
  EXPECT_EQ(run.num_gpus, 16);
  ASSERT_TRUE(run.with_ffn.has_value());
  EXPECT_TRUE(std::ranges::any_of(run.with_ffn->ffn_tables, [](const TableUse& use) {
    return use.device == "h200-sxm" && use.origin == Origin::kOwn;
  }));
  EXPECT_TRUE(std::ranges::none_of(run.with_ffn->attention_tables, [](const TableUse& use) {
    return std::ranges::find(use.kernels, "moe") != use.kernels.end();
  }));
}

TEST_F(FfnMachineTest, AResolvedScenarioIsReadAgain) {
  for (const std::string more : {"", "cost: {usd_per_gpu_hour: 2}\n"}) {
    const Scenario given = scenario(
        "hgx-h20", "machine: hgx-h800, cost: {usd_per_gpu_hour: 3}" + std::string(kLink), more);
    const Scenario again = load_scenario(write("again.yaml", to_yaml(given)), kPaths);
    EXPECT_EQ(to_yaml(again), to_yaml(given));
    EXPECT_DOUBLE_EQ(usd_per_hour(again), usd_per_hour(given));
    EXPECT_EQ(again.ffn->rate, BytesPerSecond(50e9));
    EXPECT_EQ(again.ffn->setting.machine_spec.name, "hgx-h800");
  }
}

TEST_F(FfnMachineTest, WhatCannotBeIsRefusedWithItsPlace) {
  const auto expect_mentions = [&](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_NE(message.find("pair.yaml:"), std::string::npos) << message;
  };
  const std::string link(kLink);
  expect_mentions(refusal("hgx-h20", "machine: hgx-h80" + link),
                  "placement.ffn.machine: unknown machine 'hgx-h80'; did you mean 'hgx-h800'");
  expect_mentions(refusal("hgx-h20", "provider: none" + link), "'machine'");
  expect_mentions(refusal("hgx-h20", "machine: single-h200" + link),
                  "placement: ffn needs 8 GPUs (1 replicas of 8); machine single-h200 has 1");
  expect_mentions(refusal("single-h200", "machine: hgx-h20" + link),
                  "placement: attention needs 8 GPUs (1 replicas of 8); machine single-h200 has 1");
  expect_mentions(refusal("hgx-h20", "machine: hgx-h800"),
                  "attention is on hgx-h20 and ffn on hgx-h800, machines of their own");
  expect_mentions(refusal("hgx-h20", "machine: hgx-h800, transfer: {rates: 50 GB/s}"),
                  "did you mean 'rate'");
  expect_mentions(refusal("hgx-h20", "machine: hgx-h800, provider: vlm" + link),
                  "placement.ffn.provider: unknown provider of h800-sxm");
  expect_mentions(refusal("hgx-h20", "machine: hgx-h800" + link,
                          "autoscaling: {max_replicas: 2, start_up: 30 s, target: {metric: "
                          "running, value: 4}}\n"),
                  "autoscaling");
  try {
    load_scenario(write("pair.yaml",
                        testing::kMinimal + std::string("placement: {ffn: {machine: hgx-h800}}\n")),
                  kPaths);
    ADD_FAILURE() << "read";
  } catch (const ScenarioError& error) {
    expect_mentions(error.what(), "without ffn_instances");
  }
  EXPECT_THROW(predict_validation(pair("hgx-h20", "hgx-h800")), ScenarioError);
}

}  // namespace
}  // namespace orrery
