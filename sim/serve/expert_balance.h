#pragma once

// Experts that are placed anew while a service runs (EPLB), and what came of it. Plain data.

#include <cstdint>
#include <vector>

#include "sim/units/units.h"

namespace orrery {

// Names and defaults of vLLM's --eplb-config (vllm/config/parallel.py, EPLBConfig).
struct EplbConfig {
  std::int64_t step_interval = 3000;  // steps from one rebalance to the next
  std::int64_t window_size = 1000;    // the last steps, whose load it goes by
  // Layers whose experts move at the end of a step (SGLang, --eplb-rebalance-layers-per-chunk); 0:
  // all in one step, which is held up until they have (vLLM without use_async).
  std::int64_t layers_per_step = 0;
  // Host time of each layer that moves, beside the links: choosing places, packing, barriers.
  Seconds layer_overhead;
  bool operator==(const EplbConfig&) const = default;
};

// One rebalance of one replica. Balance: rows of a rank in a step, mean over most, under the load
// at the time.
struct Rebalance {
  Seconds time;           // the weights begin to move
  std::int64_t step = 0;  // of the replica, counted from 1, at whose end
  // Of one layer that hold another expert than before; all layers move alike.
  std::int64_t num_slots = 0;
  Bytes moved;      // of all layers, over all ranks
  Seconds held_up;  // by which steps are longer
  double balance_before = 1;
  double balance_after = 1;
};

// From `time` on.
struct BalanceFrom {
  Seconds time;
  double balance = 1;
};

// Of one replica.
struct ExpertHistory {
  int replica = 0;
  std::vector<Rebalance> rebalances;
  std::vector<BalanceFrom> balances;  // where it changed
  double balance_steps = 0;           // the sum over steps
  std::int64_t num_steps = 0;
};

// Of a service, replica by replica.
struct ExpertMetrics {
  std::vector<ExpertHistory> replicas;
  double balance = 1;  // the mean over steps
  Bytes moved;
  Seconds held_up;
  std::int64_t num_rebalances = 0;
};

}  // namespace orrery
