#pragma once

// Times of steps on rooflines.

#include <gtest/gtest.h>

#include "sim/serve/simulated_steps.h"
#include "tests/model/small_models.h"

namespace orrery::testing {

// A node of four GPUs with round numbers; costs are rooflines, there are no tables.
class SimulatedStepsTest : public ::testing::Test {
 protected:
  SimulatedStepsConfig config(const ModelConfig& model, Mesh mesh) {
    return {.model = model,
            .mesh = mesh,
            .machine = &machine_,
            .graph_cost = &graph_cost_,
            .eager_cost = &eager_cost_,
            .scheduler_base = Seconds(5e-4),
            .graph_batch_sizes = {1, 2, 4, 8, 16, 32, 64}};
  }
  StepSetup setup(const ModelConfig& model, Mesh mesh, const CostModel& cost) const {
    return {.model = model, .mesh = mesh, .machine = &machine_, .cost = &cost};
  }

  HostCosts host_{.eager_launch = Seconds(5e-6), .graph_node = Seconds(1e-6)};
  Machine machine_ = make_machine({.name = "test",
                                   .kind = "nvswitch_node",
                                   .device = {.name = "gpu",
                                              .hbm_capacity = Bytes(80e9),
                                              .hbm_bandwidth = BytesPerSecond(4e12),
                                              .dense_flops = {{DType::kBf16, FlopsPerSecond(1e15)},
                                                              {DType::kFp8, FlopsPerSecond(2e15)}},
                                              .num_sms = 100},
                                   .num_gpus = 4,
                                   .gpus_per_node = 4,
                                   .nvlink_rate = BytesPerSecond(450e9),
                                   .nvlink_latency = Seconds(1e-6)});
  CostModel graph_cost_{
      machine_, nullptr, nullptr, {.launch_mode = LaunchMode::kGraph, .host = host_}};
  CostModel eager_cost_{
      machine_, nullptr, nullptr, {.launch_mode = LaunchMode::kEager, .host = host_}};
};

}  // namespace orrery::testing
