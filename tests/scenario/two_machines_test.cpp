// Prefill and decode on machines of their own.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#include "sim/machine/machine_link.h"
#include "sim/scenario/costs.h"
#include "sim/scenario/disaggregated_run.h"
#include "sim/scenario/outputs.h"
#include "sim/scenario/run.h"
#include "sim/scenario/service_costs.h"
#include "sim/scenario/validation.h"
#include "sim/serve/records_csv.h"
#include "tests/scenario/scenario_testing.h"

namespace orrery {
namespace {

using testing::kPaths;

constexpr const char* kLink = "transfer: {rate: 50 GB/s, latency: 5 us}";
constexpr const char* kAlone =
    "{closed_loop: {concurrency: 1, num_requests: 6, prompt_tokens: 1000, output_tokens: 20}}";
constexpr const char* kMany =
    "{poisson: {requests_per_s: 30, num_requests: 200, prompt_tokens: {mean: 900, cv: 1, min: 16, "
    "max: 4000}, output_tokens: {mean: 60, cv: 1, min: 1, max: 300}}}";

class TwoMachinesTest : public testing::ScenarioDirectory {
 protected:
  // `machine`: of the scenario, empty for none. `more`: further keys, each with its line end.
  Scenario scenario(const std::string& sides, const std::string& machine = "",
                    const std::string& workload = kAlone, const std::string& more = "") const {
    return load_scenario(
        write("pair.yaml", "model: {config: llama-3.1-8b}\n" +
                               (machine.empty() ? "" : "machine: " + machine + "\n") +
                               "disaggregation: {" + sides + "}\nworkload: " + workload + "\n" +
                               more),
        kPaths);
  }
  // On two machines, each of its own, with `kLink`.
  Scenario pair(const std::string& prefill, const std::string& decode,
                const std::string& workload = kAlone, const std::string& more = "") const {
    return scenario(
        "prefill: {machine: " + prefill + "}, decode: {machine: " + decode + "}, " + kLink, "",
        workload, "provider: vllm-0.24.0\n" + more);
  }
  std::string refusal(const std::string& sides, const std::string& machine = "") const {
    try {
      run_scenario(scenario(sides, machine));
    } catch (const ScenarioError& error) {
      return error.what();
    }
    return "(served)";
  }
};

std::vector<Seconds> step_times(const RunResult& result, int replica) {
  std::vector<Seconds> times;
  for (const StepRecord& step : result.service.steps) {
    if (step.replica == replica) times.push_back(step.duration);
  }
  return times;
}

TEST_F(TwoMachinesTest, TwoOfOneKindServeAsOneMachineWithAsFastALink) {
  const std::string provider = "provider: vllm-0.24.0\n";
  const std::string link = std::string(", ") + kLink;
  for (const auto& [prefill, decode] : {std::pair("tp: 1", "tp: 1"), {"tp: 2", "tp: 2, dp: 2"}}) {
    const auto sides = [&](const std::string& machine) {
      return "prefill: {" + machine + prefill + "}, decode: {" + machine + decode + "}" + link;
    };
    const RunResult one = run_scenario(scenario(sides(""), "hgx-h200", kMany, provider));
    const RunResult two =
        run_scenario(scenario(sides("machine: hgx-h200, "), "hgx-h200", kMany, provider));
    EXPECT_EQ(requests_csv(one.service), requests_csv(two.service));
    EXPECT_EQ(steps_csv(one.service), steps_csv(two.service));
    EXPECT_EQ(one.memory.num_kv_blocks, two.memory.num_kv_blocks);
    EXPECT_EQ(one.disaggregated->prefill_memory.num_kv_blocks,
              two.disaggregated->prefill_memory.num_kv_blocks);
    EXPECT_EQ(service_energy(one.scenario, one.num_gpus, one.service.metrics)->all,
              service_energy(two.scenario, two.num_gpus, two.service.metrics)->all);
    EXPECT_EQ(one.warnings, two.warnings);
  }
}

TEST_F(TwoMachinesTest, AFasterDecodeDeviceLowersTpotAndLeavesPromptsAsTheyWere) {
  const RunResult slow = run_scenario(pair("hgx-h100", "hgx-h100"));
  const RunResult fast = run_scenario(pair("hgx-h100", "hgx-h200"));
  EXPECT_EQ(step_times(slow, 0), step_times(fast, 0));
  EXPECT_EQ(slow.service.metrics.ttft_s.mean, fast.service.metrics.ttft_s.mean);
  // Of 8 billion weights in bf16, an H200 reads 4.8 / 3.35 times as many in a second.
  const double ratio = slow.service.metrics.tpot_s.mean / fast.service.metrics.tpot_s.mean;
  EXPECT_GT(ratio, 1.2);
  EXPECT_LT(ratio, 4.8 / 3.35);
  EXPECT_GT(fast.memory.num_kv_blocks, slow.memory.num_kv_blocks);
  EXPECT_EQ(fast.disaggregated->prefill_memory.num_kv_blocks,
            slow.disaggregated->prefill_memory.num_kv_blocks);
}

// One request at a time: its prompt is on one machine, all behind it on the other.
TEST_F(TwoMachinesTest, ARequestTakesThePromptOfOneMachineAndTheDecodesOfTheOther) {
  const RunResult h100 = run_scenario(pair("hgx-h100", "hgx-h100"));
  const RunResult h200 = run_scenario(pair("hgx-h200", "hgx-h200"));
  const RunResult mixed = run_scenario(pair("hgx-h100", "hgx-h200"));
  const RunResult turned = run_scenario(pair("hgx-h200", "hgx-h100"));
  for (std::size_t i = 0; i < mixed.service.requests.size(); ++i) {
    const auto prompt = [&](const RunResult& run) {
      const RequestRecord& record = run.service.requests[i];
      return (record.prefill_end - record.arrival).value();
    };
    const auto rest = [&](const RunResult& run) {
      const RequestRecord& record = run.service.requests[i];
      return (record.finish - record.prefill_end).value();
    };
    EXPECT_NEAR(prompt(mixed), prompt(h100), 1e-9);
    EXPECT_NEAR(rest(mixed), rest(h200), 1e-9);
    EXPECT_NEAR(prompt(turned), prompt(h200), 1e-9);
    EXPECT_NEAR(rest(turned), rest(h100), 1e-9);
    EXPECT_GT(std::abs(rest(h100) - rest(h200)), 1e-3);
  }
}

// What a step of each side takes is what a scenario on its machine alone says of that step.
TEST_F(TwoMachinesTest, StepsOfEachSideTakeWhatTheyTakeOnItsMachine) {
  // One decode each, which no fast-forward takes together with others.
  const std::string workload =
      "{closed_loop: {concurrency: 1, num_requests: 6, prompt_tokens: 1000, output_tokens: 2}}";
  const RunResult mixed = run_scenario(pair("hgx-h100", "hgx-h200", workload));
  const std::array<const char*, 2> machines{"hgx-h100", "hgx-h200"};
  for (int replica = 0; replica < 2; ++replica) {
    const std::string machine = machines[static_cast<std::size_t>(replica)];
    const Scenario alone = load_scenario(
        write("alone.yaml", "model: {config: llama-3.1-8b}\nprovider: vllm-0.24.0\nmachine: " +
                                machine + "\nworkload: " + workload + "\n"),
        kPaths);
    std::vector<ReplicaStep> steps;
    std::vector<Seconds> durations;
    for (const StepRecord& step : mixed.service.steps) {
      if (step.replica != replica || step.num_steps > 1) continue;
      Batch batch{.num_decodes = step.num_decodes, .decode_context = step.decode_context};
      if (step.num_prefills > 0) batch.prefill = {{.query = step.prefill_tokens}};
      steps.push_back({.replica = 0, .start = step.start, .batch = batch});
      durations.push_back(step.duration);
    }
    ASSERT_FALSE(steps.empty());
    const std::vector<Seconds> replayed = replayed_durations(alone, steps);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      EXPECT_NEAR(replayed[i].value(), durations[i].value(), 1e-12) << machine << " " << i;
    }
  }
  std::vector<ReplicaStep> both;
  for (const int replica : {0, 1}) {
    const Batch batch = replica == 0 ? Batch{.prefill = {{.query = 1000}}}
                                     : Batch{.num_decodes = 1, .decode_context = 1002};
    both.push_back({.replica = replica, .batch = batch});
  }
  const std::vector<Seconds> of_both = replayed_durations(mixed.scenario, both);
  EXPECT_EQ(of_both[0], step_times(mixed, 0).front());
}

TEST_F(TwoMachinesTest, EnergyAndCostsAreTheSumsOfTheSides) {
  const RunResult run = run_scenario(pair("hgx-h100, replicas: 3", "hgx-h200, replicas: 2", kMany));
  const ServingMetrics& metrics = run.service.metrics;
  const DisaggregationMetrics& sides = *metrics.disaggregation;
  EXPECT_NEAR((sides.prefill.work_energy + sides.decode.work_energy).value(),
              metrics.work_energy.value(), 1e-9 * metrics.work_energy.value());
  const auto all = service_energy(run.scenario, run.num_gpus, metrics);
  const auto prefill = side_energy(prefill_side(run.scenario), sides.prefill, metrics);
  const auto decode = side_energy(decode_side(run.scenario), sides.decode, metrics);
  EXPECT_EQ(all->all, prefill->all + decode->all);
  // By hand: boards wait all the time, and work beside.
  const auto waiting = [&](const MachineSetting& setting, int gpus) {
    return (setting.machine_spec.device.power->waiting * metrics.duration).value() * gpus;
  };
  EXPECT_NEAR(all->all.value(),
              waiting(prefill_setting(run.scenario), 3) + waiting(run.scenario, 2) +
                  metrics.work_energy.value(),
              1e-9 * all->all.value());
  const double h100 = usd_per_gpu_hour(prefill_setting(run.scenario).machine_spec);
  const double h200 = usd_per_gpu_hour(run.scenario.machine_spec);
  EXPECT_NE(h100, h200);
  EXPECT_DOUBLE_EQ(usd_per_hour(run.scenario), 3 * h100 + 2 * h200);
}

TEST_F(TwoMachinesTest, APriceOfASideGoesBeforeThatOfBoth) {
  const std::string sides =
      "prefill: {machine: hgx-h100, cost: {usd_per_gpu_hour: 3}}, decode: {machine: hgx-h200}, ";
  const Scenario priced = scenario(sides + kLink, "", kAlone, "cost: {usd_per_gpu_hour: 2}\n");
  EXPECT_DOUBLE_EQ(usd_per_hour(priced), 3 + 2);
  const Scenario again = load_scenario(write("again.yaml", to_yaml(priced)), kPaths);
  EXPECT_EQ(to_yaml(again), to_yaml(priced));
  EXPECT_DOUBLE_EQ(usd_per_hour(again), 5);
  // Of one machine, too.
  const Scenario one = scenario("prefill: {cost: {usd_per_gpu_hour: 3}}, decode: {tp: 2}",
                                "hgx-h200", kAlone, "cost: {usd_per_gpu_hour: 2}\n");
  EXPECT_DOUBLE_EQ(usd_per_hour(one), 3 + 2 * 2);
}

TEST_F(TwoMachinesTest, ASideWithoutAMachineHasTheScenariosAllToItself) {
  const std::string sides = "prefill: {tp: 8}, decode: {machine: hgx-h200, tp: 8}, ";
  const RunResult run = run_scenario(scenario(sides + kLink, "hgx-h100"));
  EXPECT_EQ(run.num_gpus, 16);
  EXPECT_EQ(prefill_side(run.scenario).machine_spec.name, "hgx-h100");
  EXPECT_EQ(decode_side(run.scenario).machine_spec.name, "hgx-h200");
  const std::string summary = summary_json(run);
  EXPECT_NE(summary.find("\"device\": \"h100-sxm + h200-sxm\""), std::string::npos);
  const RunResult turned = run_scenario(scenario(
      "prefill: {machine: hgx-h100, tp: 8}, decode: {tp: 8}, " + std::string(kLink), "hgx-h200"));
  EXPECT_EQ(requests_csv(turned.service), requests_csv(run.service));
}

TEST_F(TwoMachinesTest, OneNameTwiceIsTwoMachines) {
  const std::string named =
      "prefill: {machine: hgx-h200, tp: 8}, decode: {machine: hgx-h200, tp: 8}";
  EXPECT_EQ(run_scenario(scenario(named + ", " + kLink)).num_gpus, 16);
  const std::string once = refusal("prefill: {tp: 8}, decode: {tp: 8}", "hgx-h200");
  EXPECT_NE(once.find("needs 16 GPUs (prefill 8, decode 8); machine hgx-h200 has 8"),
            std::string::npos)
      << once;
}

TEST_F(TwoMachinesTest, AProviderOfASideIsOfItAlone) {
  const RunResult run = run_scenario(
      scenario("prefill: {provider: none}, decode: {provider: vllm-0.24.0}", "hgx-h200"));
  EXPECT_FALSE(run.scenario.disaggregation->has_two_machines);
  EXPECT_TRUE(run.disaggregated->prefill_tables.empty());
  EXPECT_FALSE(run.disaggregated->decode_tables.empty());
  EXPECT_EQ(run.disaggregated->transfer_source, "measured on hgx-h200");
  const RunResult measured = run_scenario(
      scenario("prefill: {}, decode: {}", "hgx-h200", kAlone, "provider: vllm-0.24.0\n"));
  for (std::size_t i = 0; i < step_times(measured, 1).size(); ++i) {
    EXPECT_NEAR(step_times(run, 1)[i].value(), step_times(measured, 1)[i].value(), 1e-12);
  }
  EXPECT_NE(step_times(run, 0), step_times(measured, 0));
  EXPECT_TRUE(std::ranges::any_of(run.warnings, [](const std::string& warning) {
    return warning.starts_with("prefill: provider none");
  }));
}

// vLLM's defaults on a GPU of 48 GB are 256 sequences and 2,048 tokens; resolved scenarios keep
// them.
TEST_F(TwoMachinesTest, EachSideHasTheDefaultsOfItsDevice) {
  const Scenario given = pair("l40s-node", "hgx-h200");
  EXPECT_EQ(prefill_side(given).engine.max_num_seqs, 256);
  EXPECT_EQ(prefill_side(given).engine.max_num_batched_tokens, 2048);
  EXPECT_EQ(decode_side(given).engine.max_num_seqs, 1024);
  EXPECT_EQ(decode_side(given).engine.max_num_batched_tokens, 8192);
  const Scenario again = load_scenario(write("again.yaml", to_yaml(given)), kPaths);
  EXPECT_EQ(to_yaml(again), to_yaml(given));
  EXPECT_EQ(prefill_side(again).engine.max_num_batched_tokens, 2048);
  EXPECT_EQ(prefill_side(again).machine_spec.name, "l40s-node");
  const Scenario turned = pair("hgx-h200", "l40s-node");
  EXPECT_EQ(prefill_side(turned).engine.max_num_batched_tokens, 8192);
  EXPECT_EQ(decode_side(turned).engine.max_num_seqs, 256);
  EXPECT_EQ(to_yaml(load_scenario(write("again.yaml", to_yaml(turned)), kPaths)), to_yaml(turned));
}

TEST_F(TwoMachinesTest, TheSlowerNetworkJoinsClusters) {
  std::string slow =
      "name: slow\nkind: rail_fat_tree\ndevice: h100-sxm\nnum_gpus: 16\n"
      "nvlink_rate: 450 GB/s\nnvlink_latency: 0.6 us\nnic_rate: 25 GB/s\n"
      "nic_latency: 9 us\nswitch_latency: 1 us\n";
  const std::string file = write("slow.yaml", slow).string();
  const std::string sides = "{machine: " + file + "}, decode: {machine: h200-cluster}";
  const Scenario given = scenario("prefill: " + sides);
  const TransferLinks found =
      transfer_links(given, make_machine(given.machine_spec), Bytes(1 << 18));
  ASSERT_EQ(found.links.size(), 1U);
  EXPECT_EQ(found.source, "slower network of slow and h200-cluster");
  EXPECT_EQ(found.links[0].time.rate, BytesPerSecond(25e9));
  // The NIC and one switch.
  EXPECT_NEAR(found.links[0].time.latency.value(), 10e-6, 1e-12);
  EXPECT_EQ(link_between(given.machine_spec, prefill_setting(given).machine_spec)->rate,
            BytesPerSecond(25e9));
  const Scenario stated = scenario("prefill: " + sides + ", transfer: {latency: 70 us}");
  EXPECT_EQ(transfer_links(stated, make_machine(stated.machine_spec), Bytes(1 << 18))
                .links[0]
                .time.latency,
            Seconds(70e-6));
}

TEST_F(TwoMachinesTest, WhatCannotBeIsRefusedWithItsSideAndPlace) {
  const auto expect_mentions = [&](const std::string& sides, const std::string& machine,
                                   const std::vector<std::string>& parts) {
    const std::string message = refusal(sides, machine);
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
    }
    EXPECT_NE(message.find("pair.yaml:"), std::string::npos) << message;
  };
  const std::string link = std::string(", ") + kLink;
  expect_mentions("prefill: {machine: hgx-h101}, decode: {}" + link, "hgx-h200",
                  {"disaggregation.prefill.machine", "did you mean 'hgx-h100'"});
  expect_mentions("prefill: {}, decode: {machine: {name: hgx-h100, gpus: 8}}" + link, "hgx-h200",
                  {"disaggregation.decode.machine", "did you mean 'num_gpus'"});
  expect_mentions("prefill: {provider: vlm}, decode: {}", "hgx-h200",
                  {"disaggregation.prefill.provider: unknown provider of h200-sxm 'vlm'"});
  expect_mentions(
      "prefill: {machine: hgx-h100, tp: 8, replicas: 2}, decode: {}" + link, "hgx-h200",
      {"disaggregation.prefill: needs 16 GPUs (2 replicas of 8); machine hgx-h100 has 8"});
  expect_mentions("prefill: {}, decode: {machine: single-h200, tp: 2}" + link, "hgx-h100",
                  {"disaggregation.decode: needs 2 GPUs (1 replicas of 2); machine single-h200"});
  expect_mentions("prefill: {machine: hgx-h100}, decode: {machine: hgx-h200}", "",
                  {"prefill is on hgx-h100 and decode on hgx-h200",
                   "since hgx-h100 and hgx-h200 have no network",
                   "expected disaggregation.transfer: {rate: 50 GB/s}"});
  expect_mentions("prefill: {machine: h200-cluster}, decode: {machine: hgx-h100}", "",
                  {"since hgx-h100 has no network"});
  expect_mentions("prefill: {machine: hgx-h100}, decode: {}", "", {"missing key 'machine'"});
  expect_mentions("prefill: {machine: hgx-h100, gpu_memory_utilization: 0.1}, decode: {}" + link,
                  "hgx-h200", {"disaggregation.prefill", "does not fit on h100-sxm"});
  expect_mentions("prefill: {machine: hgx-h100}, decode: {gpu_memory_utilization: 0.1}" + link,
                  "hgx-h200", {"disaggregation.decode", "does not fit on h200-sxm"});
}

TEST_F(TwoMachinesTest, AMachineThatNeitherSideHasIsWarnedOf) {
  const std::string sides = "prefill: {machine: hgx-h100}, decode: {machine: hgx-h200}, ";
  const RunResult run = run_scenario(scenario(sides + kLink, "hgx-b200"));
  EXPECT_TRUE(std::ranges::any_of(run.warnings, [](const std::string& warning) {
    return warning.starts_with("machine hgx-b200 is passed over");
  }));
}

TEST_F(TwoMachinesTest, TheyAreNotExecuted) {
  try {
    predict_validation(pair("hgx-h100", "hgx-h200"));
    ADD_FAILURE() << "predicted";
  } catch (const ScenarioError& error) {
    EXPECT_NE(error.message().find("machines of their own, which is simulated and not executed"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace orrery
