#include "sim/scenario/disaggregated_run.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "sim/scenario/run.h"
#include "sim/scenario/validation.h"
#include "sim/serve/records_csv.h"
#include "sim/units/text_file.h"
#include "tests/scenario/scenario_testing.h"

namespace orrery {
namespace {

using testing::kPaths;

class DisaggregatedRunTest : public testing::ScenarioDirectory {
 protected:
  // One request of 1,000 prompt tokens and 5 output tokens at a time, eight in all.
  Scenario scenario(const std::string& disaggregation,
                    const std::string& machine = "hgx-h200") const {
    return load_scenario(
        write("small.yaml",
              "model: {config: llama-3.1-8b}\n"
              "machine: " +
                  machine +
                  "\n"
                  "provider: vllm-0.24.0\n"
                  "disaggregation: " +
                  disaggregation +
                  "\n"
                  "workload: {closed_loop: {concurrency: 1, num_requests: 8, prompt_tokens: 1000, "
                  "output_tokens: 5}}\n"),
        kPaths);
  }
  // Message of the error with which reading or running it ends.
  std::string refusal(const std::string& disaggregation) const {
    try {
      run_scenario(scenario(disaggregation));
    } catch (const ScenarioError& error) {
      return error.what();
    }
    return "(served)";
  }
};

constexpr const char* kPair = "{prefill: {tp: 1}, decode: {tp: 1}}";

TEST_F(DisaggregatedRunTest, TransferBytesAreTheKvBytesOfThePromptsBlocks) {
  for (const std::string tp : {"1", "2"}) {
    const RunResult result =
        run_scenario(scenario("{prefill: {tp: " + tp + "}, decode: {tp: " + tp + "}}"));
    EXPECT_EQ(result.num_gpus, 2 * std::stoi(tp));
    // 63 blocks of 16 tokens; 32 layers of 2 * 8 heads * 128 * 2 bytes a token, however split.
    for (const RequestRecord& record : result.service.requests) {
      EXPECT_EQ(record.transfer_bytes, Bytes(63.0 * 16 * 32 * 2 * 8 * 128 * 2));
    }
  }
}

// One request at a time: each step has one chunk or one decode, and replicas are known by number.
TEST_F(DisaggregatedRunTest, ReplayedStepsTakeWhatTheyTookInTheRun) {
  const Scenario scenario = this->scenario(kPair);
  std::vector<ReplicaStep> steps;
  std::vector<Seconds> durations;
  for (const StepRecord& step : run_scenario(scenario).service.steps) {
    if (step.num_steps > 1) continue;
    Batch batch{.num_decodes = step.num_decodes, .decode_context = step.decode_context};
    if (step.num_prefills > 0) batch.prefill = {{.query = step.prefill_tokens}};
    steps.push_back({.replica = step.replica, .start = step.start, .batch = batch});
    durations.push_back(step.duration);
  }
  ASSERT_GE(steps.size(), 8U);
  const std::vector<Seconds> replayed = replayed_durations(scenario, steps);
  ASSERT_EQ(replayed.size(), durations.size());
  for (std::size_t i = 0; i < replayed.size(); ++i) {
    EXPECT_NEAR(replayed[i].value(), durations[i].value(), 1e-12) << i;
  }
  EXPECT_THROW(replayed_durations(
                   scenario, std::vector<ReplicaStep>{{.replica = 2, .batch = steps[0].batch}}),
               std::invalid_argument);
  EXPECT_THROW(replayed_durations(scenario, std::vector<ReplicaStep>{{.replica = 0}}),
               std::invalid_argument);
}

TEST_F(DisaggregatedRunTest, AlonePairsSecondTokenIsLateByLatencyAndBytesOverRate) {
  // Nothing but the link differs: 63 blocks of 2 MiB at 10 GB/s, 50 us.
  const RunResult fast = run_scenario(
      scenario("{prefill: {}, decode: {}, transfer: {rate: 1000000 TB/s, latency: 0 s}}"));
  const RunResult slow = run_scenario(
      scenario("{prefill: {}, decode: {}, transfer: {rate: 10 GB/s, latency: 50 us}}"));
  const auto gap = [](const RunResult& result) {
    const RequestRecord& record = result.service.requests[3];
    return (record.second_token - record.prefill_end).value();
  };
  const double transfer = 50e-6 + 63.0 * 2097152 / 10e9;
  EXPECT_NEAR(gap(slow) - gap(fast), transfer, 1e-9);
  EXPECT_NEAR(slow.service.metrics.disaggregation->transfer_s.p50, transfer, 1e-12);
  EXPECT_EQ(slow.disaggregated->transfer_source, "as the scenario says");
}

TEST_F(DisaggregatedRunTest, AMeasuredTransferLiesBetweenTheRowsAroundItsSize) {
  const RunResult result = run_scenario(scenario(kPair));
  EXPECT_EQ(result.disaggregated->transfer_source, "measured on hgx-h200");
  // Pieces of 16 tokens * 8 heads * 128 * 2 bytes: the nearest rows are those of 16 or 64 KiB.
  const std::vector<TransferPoint> points = read_transfer_points(
      kPaths.root / "topologies/hgx-h200/links/kv_transfer.csv", Bytes(16 * 8 * 128 * 2));
  ASSERT_GE(points.size(), 3U);
  const double bytes = 63.0 * 2097152;
  const double time = result.service.metrics.disaggregation->transfer_s.mean;
  // Slower than NVLink's raw rate, faster than half of it.
  EXPECT_GT(time, bytes / 478e9);
  EXPECT_LT(time, bytes / 239e9);
}

TEST_F(DisaggregatedRunTest, AMachineWithoutMeasuredTransfersTakesTheLinks) {
  const RunResult result = run_scenario(scenario(kPair, "hgx-h100"));
  EXPECT_EQ(result.disaggregated->transfer_source, "rate of the NVLink link");
  const Machine machine = make_machine(result.scenario.machine_spec);
  const double expected = machine.route(0, 1).latency.value() +
                          63.0 * 2097152 / result.scenario.machine_spec.nvlink_rate.value();
  EXPECT_NEAR(result.service.metrics.disaggregation->transfer_s.mean, expected, 1e-12);
}

TEST_F(DisaggregatedRunTest, BetweenNodesATransferTakesTheNetwork) {
  // Each instance fills a node of 8.
  const Scenario apart =
      scenario("{prefill: {tp: 8}, decode: {tp: 8}}", "{name: h200-cluster, num_gpus: 16}");
  const TransferLinks found =
      transfer_links(apart, make_machine(apart.machine_spec), Bytes(1 << 18));
  ASSERT_EQ(found.links.size(), 1U);
  EXPECT_EQ(found.source, "rate of the network link");
  EXPECT_EQ(found.links[0].fabric, 1);
  EXPECT_LE(found.links[0].time.rate, apart.machine_spec.nic_rate);
}

TEST_F(DisaggregatedRunTest, SidesHaveTheirOwnLimitsAndMemory) {
  const Scenario both = scenario(
      "{prefill: {replicas: 2, max_num_seqs: 8, gpu_memory_utilization: 0.5}, "
      "decode: {max_num_batched_tokens: 512}}");
  EXPECT_EQ(prefill_side(both).engine.max_num_seqs, 8);
  EXPECT_EQ(decode_side(both).engine.max_num_seqs, 512);  // 1,024 gives way to the budget
  EXPECT_EQ(decode_side(both).engine.max_num_batched_tokens, 512);
  EXPECT_EQ(prefill_side(both).replicas, 2);
  const RunResult result = run_scenario(both);
  EXPECT_EQ(result.num_gpus, 3);
  EXPECT_LT(result.disaggregated->prefill_memory.num_kv_blocks, result.memory.num_kv_blocks);
  const Scenario again = load_scenario(write("again.yaml", to_yaml(both)), kPaths);
  EXPECT_EQ(to_yaml(again), to_yaml(both));
}

TEST_F(DisaggregatedRunTest, WhatCannotBeIsRefusedWithItsPlace) {
  const auto expect_mentions = [&](const std::string& disaggregation, const std::string& part) {
    const std::string message = refusal(disaggregation);
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_NE(message.find("small.yaml:4:"), std::string::npos) << message;
  };
  expect_mentions("{prefill: {replicas: 0}, decode: {}}", "replicas");
  expect_mentions("{prefill: {}}", "decode");
  expect_mentions("{prefill: {tp: 4}, decode: {tp: 4, replicas: 2}}", "needs 12 GPUs");
  expect_mentions("{prefill: {tp: 3}, decode: {tp: 3}}", "disaggregation.prefill");
  expect_mentions("{prefill: {}, decode: {}, transfer: {rate: 100}}", "rate");
  expect_mentions("{prefill: {}, decode: {}, transfers: {}}", "did you mean 'transfer'");
  expect_mentions("{prefill: {}, decode: {gpu_memory_utilization: 0.05}}", "does not fit");
}

// 63 blocks of 2 MiB over all ranks; the busiest rank of either side says how long they take.
TEST_F(DisaggregatedRunTest, UnlikeSidesMoveTheSameBytesAsFastAsTheBusiestRank) {
  const std::string transfer = ", transfer: {rate: 10 GB/s, latency: 50 us}}";
  for (const auto& [sides, share] : {std::pair("{prefill: {tp: 1}, decode: {tp: 2}", 1.0),
                                     {"{prefill: {tp: 4}, decode: {tp: 1}", 1.0},
                                     {"{prefill: {tp: 2}, decode: {tp: 4}", 0.5},
                                     {"{prefill: {pp: 2}, decode: {tp: 2}", 0.5},
                                     {"{prefill: {tp: 2}, decode: {tp: 2}", 0.5},
                                     {"{prefill: {tp: 4}, decode: {tp: 2, dp: 2}", 0.5}}) {
    SCOPED_TRACE(sides);
    const RunResult result = run_scenario(scenario(sides + transfer));
    for (const RequestRecord& record : result.service.requests) {
      EXPECT_EQ(record.transfer_bytes, Bytes(63.0 * 2097152));
    }
    EXPECT_NEAR(result.service.metrics.disaggregation->transfer_s.mean,
                50e-6 + 63.0 * 2097152 * share / 10e9, 1e-12);
  }
}

TEST_F(DisaggregatedRunTest, TheSideWithMoreRanksHasRoomAtItsPorts) {
  const auto only_link = [&](const std::string& sides) {
    const Scenario apart = scenario(sides);
    return transfer_links(apart, make_machine(apart.machine_spec), Bytes(1 << 18)).links.at(0);
  };
  EXPECT_EQ(only_link("{prefill: {tp: 1}, decode: {tp: 4}}").leaving, 1);
  EXPECT_EQ(only_link("{prefill: {tp: 1}, decode: {tp: 4}}").entering, 0.25);
  EXPECT_EQ(only_link("{prefill: {tp: 4}, decode: {tp: 2}}").leaving, 0.5);
  EXPECT_EQ(only_link("{prefill: {tp: 4}, decode: {tp: 2}}").entering, 1);
  EXPECT_EQ(only_link("{prefill: {tp: 2}, decode: {tp: 2}}").leaving, 1);
  EXPECT_EQ(only_link("{prefill: {tp: 2}, decode: {tp: 2}}").entering, 1);
}

// Of 8 bits for each number on either side, whoever has 16; the decode side's room is that of its
// own format.
TEST_F(DisaggregatedRunTest, UnlikeFormatsMoveTheNarrowerOne) {
  const std::string transfer = ", transfer: {rate: 10 GB/s, latency: 50 us}}";
  const auto run = [&](const std::string& prefill, const std::string& decode) {
    return run_scenario(scenario("{prefill: {kv_cache: " + prefill +
                                 "}, decode: {kv_cache: " + decode + "}" + transfer));
  };
  const RunResult wide = run("bf16", "bf16");
  for (const auto& [prefill, decode] :
       {std::pair("bf16", "fp8"), {"fp8", "bf16"}, {"fp8", "fp8"}}) {
    SCOPED_TRACE(std::string(prefill) + " to " + decode);
    const RunResult result = run(prefill, decode);
    EXPECT_EQ(result.service.requests[0].transfer_bytes, Bytes(63.0 * 2097152 / 2));
    EXPECT_NEAR(result.service.metrics.disaggregation->transfer_s.mean,
                50e-6 + 63.0 * 1048576 / 10e9, 1e-12);
    const double more = decode == std::string("fp8") ? 2 : 1;
    EXPECT_NEAR(static_cast<double>(result.memory.num_kv_blocks) /
                    static_cast<double>(wide.memory.num_kv_blocks),
                more, 1e-3);
  }
  const Scenario unlike = scenario("{prefill: {kv_cache: bf16}, decode: {kv_cache: fp8}}");
  EXPECT_FALSE(unlike.disaggregation->prefill.kv_cache.has_value());  // the model's own
  EXPECT_EQ(to_yaml(load_scenario(write("again.yaml", to_yaml(unlike)), kPaths)), to_yaml(unlike));
}

// A side's own formats are those of its weights in memory and of its products; the other side is as
// it was, and the same KV caches move.
TEST_F(DisaggregatedRunTest, ASideHasWeightsOfItsOwnFormat) {
  const RunResult alike = run_scenario(scenario(kPair));
  const Scenario given =
      scenario("{prefill: {tp: 1}, decode: {tp: 1, weights: fp8, activations: fp8}}");
  const RunResult unlike = run_scenario(given);
  EXPECT_EQ(prefill_side(given).precision, prefill_side(alike.scenario).precision);
  EXPECT_EQ(decode_side(given).precision.weights, DType::kFp8);
  EXPECT_EQ(decode_side(given).precision.activations, DType::kFp8);
  EXPECT_EQ(unlike.disaggregated->prefill_memory.weights,
            alike.disaggregated->prefill_memory.weights);
  // 32 layers of (4096 + 1024) * 4096 * 2 of attention and 3 * 4096 * 14336 of the FFN: a byte less
  // of each, but for scales.
  const double linear = 32.0 * (2 * 5120.0 * 4096 + 3 * 4096.0 * 14336);
  EXPECT_NEAR((alike.memory.weights - unlike.memory.weights).value() / linear, 1, 1e-3);
  EXPECT_EQ(unlike.service.requests[0].transfer_bytes, alike.service.requests[0].transfer_bytes);
  EXPECT_EQ(unlike.service.requests[0].prefill_end, alike.service.requests[0].prefill_end);
  EXPECT_LT(unlike.service.metrics.tpot_s.mean, alike.service.metrics.tpot_s.mean);
  EXPECT_EQ(to_yaml(load_scenario(write("again.yaml", to_yaml(given)), kPaths)), to_yaml(given));
}

TEST_F(DisaggregatedRunTest, WeightsOfASideAreThoseOfItsExpertsUnlessTheseAreSaid) {
  const Precision model{.weights = DType::kFp8, .expert_weights = DType::kMxfp4};
  EXPECT_EQ(precision_of({}, model), model);
  EXPECT_EQ(precision_of({.weights = DType::kBf16}, model), Precision{});
  EXPECT_EQ(precision_of({.weights = DType::kBf16, .expert_weights = DType::kFp8}, model),
            (Precision{.expert_weights = DType::kFp8}));
  EXPECT_EQ(precision_of({.activations = DType::kFp8}, model).expert_weights, DType::kMxfp4);
}

// One request at a time: all of 32 layers but the last have moved when the prompt ends.
TEST_F(DisaggregatedRunTest, LayerwiseTheLastLayerIsWaitedFor) {
  const std::string link = ", transfer: {rate: 100 GB/s, latency: 0 s, layerwise: ";
  for (const auto& [pp, layers] : {std::pair("1", 32.0), {"2", 16.0}}) {
    const std::string mesh = "{pp: " + std::string(pp) + "}";
    const Scenario given = scenario("{prefill: " + mesh + ", decode: " + mesh + link + "true}}");
    const RunResult result = run_scenario(given);
    const double alone = 63.0 * 2097152 / std::stod(pp) / 100e9;
    EXPECT_NEAR(result.service.metrics.disaggregation->exposed_s.mean, alone / layers, 1e-9);
    EXPECT_EQ(to_yaml(load_scenario(write("again.yaml", to_yaml(given)), kPaths)), to_yaml(given));
  }
  const RunResult whole = run_scenario(scenario("{prefill: {}, decode: {}" + link + "false}}"));
  EXPECT_NEAR(whole.service.metrics.disaggregation->exposed_s.mean, 63.0 * 2097152 / 100e9, 1e-9);
}

// Two ranks of TP1 on the NVLink domain of the prefill replica, two on the next.
TEST_F(DisaggregatedRunTest, EachDataParallelRankHasALinkOfItsOwn) {
  const Scenario apart = scenario("{prefill: {tp: 2, replicas: 3}, decode: {dp: 4}}",
                                  "{name: h200-cluster, num_gpus: 16}");
  const TransferLinks found =
      transfer_links(apart, make_machine(apart.machine_spec), Bytes(1 << 18));
  ASSERT_EQ(found.links.size(), 12U);
  for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(found.links[i].fabric, i % 4 < 2 ? 0 : 1) << i;
  // Ranks of a replica with stages: rank 1 of dp 2 begins behind rank 0 within the first stage.
  const Scenario staged = scenario("{prefill: {tp: 2, dp: 2, pp: 2}, decode: {tp: 8}}",
                                   "{name: h200-cluster, num_gpus: 16}");
  EXPECT_EQ(transfer_links(staged, make_machine(staged.machine_spec), Bytes(1 << 18)).links.size(),
            2U);
}

// What both sides say counts, not the model's format, which neither has.
TEST_F(DisaggregatedRunTest, AlikeFormatsThatAreNotTheModelsAreExecuted) {
  const auto refusal_of = [&](const std::string& overridden) {
    try {
      Scenario given =
          scenario("{prefill: {kv_cache: bf16}, decode: {kv_cache: " + overridden + "}}");
      given.precision.kv_cache = DType::kFp8;
      given.disaggregation->prefill.kv_cache = DType::kBf16;
      given.disaggregation->decode.kv_cache = parse_dtype(overridden);
      predict_validation(given);
    } catch (const ScenarioError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal_of("bf16"), "");
  EXPECT_NE(refusal_of("fp8").find("kv_cache is bf16 for prefill and fp8 for decode, a cast"),
            std::string::npos);
}

TEST_F(DisaggregatedRunTest, UnlikeSidesAreRefusedWhereTheyCannotBe) {
  EXPECT_THROW(predict_validation(scenario("{prefill: {}, decode: {kv_cache: fp8}}")),
               ScenarioError);
  EXPECT_THROW(predict_validation(scenario("{prefill: {weights: fp8}, decode: {}}")),
               ScenarioError);
  const auto refusal_of_windows = [&](const std::string& sides) {
    const std::string windows =
        "model: {config: gpt-oss-20b}\nmachine: hgx-h200\nprovider: vllm-0.24.0\n"
        "disaggregation: " +
        sides +
        "\nworkload: {closed_loop: {concurrency: 1, num_requests: 8, prompt_tokens: 10, "
        "output_tokens: 5}}\n";
    try {
      load_scenario(write("windows.yaml", windows), kPaths);
    } catch (const ScenarioError& error) {
      return std::string(error.what());
    }
    return std::string("(was read)");
  };
  const std::string ways = refusal_of_windows("{prefill: {tp: 2}, decode: {tp: 1}}");
  EXPECT_NE(ways.find("tp 2 pp 1 and decode tp 1 pp 1"), std::string::npos) << ways;
  EXPECT_NE(ways.find("nearest: decode with tp 2 pp 1"), std::string::npos) << ways;
  const std::string formats = refusal_of_windows("{prefill: {}, decode: {kv_cache: fp8}}");
  EXPECT_NE(formats.find("expected the same kv_cache on both sides"), std::string::npos) << formats;
  EXPECT_EQ(refusal_of_windows("{prefill: {kv_cache: fp8}, decode: {kv_cache: fp8}}"),
            "(was read)");
}

TEST_F(DisaggregatedRunTest, BesidePlacementOrForABatchItIsRefused) {
  const std::string head =
      "model: {config: llama-3.1-8b}\nmachine: hgx-h200\nprovider: vllm-0.24.0\n"
      "disaggregation: {prefill: {}, decode: {}}\n";
  const std::string closed =
      "workload: {closed_loop: {concurrency: 1, num_requests: 8, prompt_tokens: 10, "
      "output_tokens: 5}}\n";
  EXPECT_THROW(load_scenario(write("a.yaml", head + closed + "placement: {tp: 1}\n"), kPaths),
               ScenarioError);
  EXPECT_THROW(load_scenario(write("b.yaml", head + "workload: {static_batch: {batch: 4, "
                                                    "prompt_tokens: 10, output_tokens: 5}}\n"),
                             kPaths),
               ScenarioError);
}

TEST_F(DisaggregatedRunTest, RequestsHaveTheirTransfersInTheCsv) {
  const RunResult result = run_scenario(scenario(kPair));
  const std::string text = requests_csv(result.service);
  EXPECT_NE(text.find(",e2e_s,decode_replica,transfer_bytes,"), std::string::npos);
  EXPECT_NE(text.find(",1,132120576,"), std::string::npos);
}

TEST_F(DisaggregatedRunTest, TheGpuSideGetsTheDecodeDeploymentAndWhatPrefillHasOfItsOwn) {
  const Scenario apart = scenario("{prefill: {max_num_seqs: 8}, decode: {replicas: 2}}");
  const ValidationPrediction prediction = predict_validation(apart);
  EXPECT_EQ(prediction.deployment.engine.max_num_seqs, 1024);
  ASSERT_TRUE(prediction.run.has_value());
  EXPECT_EQ(prediction.memory.begin()->first, 1);  // behind the prefill replica's
  write_validation(prediction, directory_);
  std::ifstream file(directory_ / "serve.txt");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(text, "closed_loop 1\nwarmup 0\nreplicas 2\nrouter round_robin\nprefill_replicas 1\n");
  const Deployment prefill =
      parse_deployment(read_text_file(directory_ / "prefill_deployment.txt", 1'000'000));
  EXPECT_EQ(prefill.num_kv_blocks, prediction.run->disaggregated->prefill_memory.num_kv_blocks);
  EXPECT_EQ(prefill.engine.max_num_seqs, 8);
  EXPECT_EQ(prefill.config, prediction.deployment.config);
  EXPECT_TRUE(prefill.graph_batch_sizes.empty());
  EXPECT_FALSE(prediction.deployment.graph_batch_sizes.empty());
}

TEST_F(DisaggregatedRunTest, TheGpuSideGetsSidesThatSplitTheModelUnlikeAndLayersThatMove) {
  const Scenario apart =
      scenario("{prefill: {tp: 2}, decode: {tp: 1, replicas: 2}, transfer: {layerwise: true}}");
  const ValidationPrediction prediction = predict_validation(apart);
  EXPECT_EQ(prediction.memory.begin()->first, 2);  // behind those of prefill
  write_validation(prediction, directory_);
  EXPECT_EQ(read_text_file(directory_ / "serve.txt", 1'000'000),
            "closed_loop 1\nwarmup 0\nreplicas 2\nrouter round_robin\nprefill_replicas 1\n"
            "layerwise\n");
  const Deployment prefill =
      parse_deployment(read_text_file(directory_ / "prefill_deployment.txt", 1'000'000));
  EXPECT_EQ(prefill.mesh.tp, 2);
  EXPECT_EQ(prediction.deployment.mesh.tp, 1);
}

}  // namespace
}  // namespace orrery
