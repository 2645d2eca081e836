#pragma once

// Small plans with times set by hand, and a run of them at one level.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/des/levels.h"
#include "sim/des/network_simgrid.h"

namespace orrery::test {

inline Machine nvswitch_machine(int num_gpus, int num_sms = 100) {
  MachineSpec spec;
  spec.name = "node";
  spec.kind = "nvswitch_node";
  spec.device.name = "gpu";
  spec.device.hbm_capacity = Bytes(80e9);
  spec.device.hbm_bandwidth = BytesPerSecond(3e12);
  spec.device.num_sms = num_sms;
  spec.num_gpus = num_gpus;
  spec.gpus_per_node = num_gpus;
  spec.nvlink_rate = BytesPerSecond(400e9);
  spec.nvlink_latency = Seconds(1e-6);
  return make_machine(spec);
}

inline Machine rail_machine(int num_gpus, double oversubscription = 1) {
  MachineSpec spec = nvswitch_machine(8).spec;
  spec.name = "cluster";
  spec.kind = "rail_fat_tree";
  spec.num_gpus = num_gpus;
  spec.nic_rate = BytesPerSecond(50e9);
  spec.nic_latency = Seconds(2e-6);
  spec.switch_latency = Seconds(1e-7);
  spec.nodes_per_leaf = 2;
  spec.spine_oversubscription = oversubscription;
  return make_machine(spec);
}

inline std::vector<int> range(int first, int last) {
  std::vector<int> ranks;
  for (int rank = first; rank < last; ++rank) ranks.push_back(rank);
  return ranks;
}

// Appends ops with their times in microseconds.
class StepBuilder {
 public:
  TensorId tensor(const std::vector<int>& ranks, TensorRole role = TensorRole::kActivation) {
    return plan.add_tensor({.name = numbered('t', plan.tensors().size()),
                            .dtype = DType::kBf16,
                            .axes = {{"tokens", 1}},
                            .role = role,
                            .ranks = plan.add_group(ranks)});
  }
  OpId kernel(const std::vector<int>& ranks, double us, int stream = 0, TensorViews reads = {},
              TensorViews writes = {}, std::vector<OpId> after = {}) {
    return add(KernelOp{.kernel = "sample", .dtype = DType::kBf16, .dims = {}}, ranks, us, stream,
               std::move(reads), std::move(writes), std::move(after));
  }
  OpId comm(CollectiveKind kind, const std::vector<int>& ranks, double bytes, double us,
            int stream = 0, TensorViews reads = {}, TensorViews writes = {}) {
    return add(CommOp{.kind = kind, .dtype = DType::kBf16, .bytes_per_rank = Bytes(bytes)}, ranks,
               us, stream, std::move(reads), std::move(writes), {});
  }
  OpId host(HostKind kind, const std::vector<int>& ranks, double us, TensorViews reads = {},
            TensorViews writes = {}, int stream = 0) {
    return add(HostOp{.kind = kind}, ranks, us, stream, std::move(reads), std::move(writes), {});
  }
  void repeat(OpId first, std::int64_t count) {
    plan.add_repeat({first, static_cast<OpId>(plan.ops().size()), count});
  }

  Plan plan;
  std::vector<Estimate> times;

 private:
  static std::string numbered(char letter, std::size_t number) {
    std::string name(1, letter);
    name += std::to_string(number);
    return name;
  }
  OpId add(OpBody body, const std::vector<int>& ranks, double us, int stream, TensorViews reads,
           TensorViews writes, std::vector<OpId> after) {
    times.push_back({.time = Seconds(us * 1e-6), .basis = Basis::kMeasured, .spread = 0});
    return plan.add_op({.name = numbered('o', plan.ops().size()),
                        .body = std::move(body),
                        .ranks = plan.add_group(ranks),
                        .stream = stream,
                        .reads = std::move(reads),
                        .writes = std::move(writes),
                        .after = std::move(after)});
  }
};

struct Host {
  LaunchMode mode = LaunchMode::kGraph;
  double launch_us = 0;
  double node_us = 0;
  double hop_us = 0;                    // in graphs; launched eagerly twice as long
  std::optional<double> collective_us;  // to enqueue one
};

inline HostCosts costs_of(const Host& host) {
  HostCosts costs;
  costs.eager_launch = Seconds(host.launch_us * 1e-6);
  costs.graph_node = Seconds(host.node_us * 1e-6);
  costs.graph_hop = Seconds(host.hop_us * 1e-6);
  costs.eager_hop = Seconds(host.hop_us * 2e-6);
  if (host.collective_us) costs.eager_collective = Seconds(*host.collective_us * 1e-6);
  return costs;
}

inline Timeline run(const StepBuilder& step, const Machine& machine, const SimulateOptions& options,
                    const Host& host = {}) {
  const PricedPlan priced = des::assemble(step.plan, step.times);
  return des::simulate(
      {.priced = &priced, .machine = &machine, .launch_mode = host.mode, .host = costs_of(host)},
      options);
}

inline double makespan_us(const StepBuilder& step, const Machine& machine, StepLevel level,
                          const Host& host = {}, std::vector<double> slowdown = {}) {
  SimulateOptions options;
  options.level = level;
  options.rank_slowdown = std::move(slowdown);
  return makespan(run(step, machine, options, host)).value() * 1e6;
}

}  // namespace orrery::test
