#pragma once

// Fluid sharing in SimGrid: flows share links max-min fairly.
//
// The process has one SimGrid engine, on one thread of its own that starts with the first use and
// lives as long as the process. Jobs from any thread are handed to it and run one at a time. The
// platform is built once per machine shape (kind, sizes, link rates) and kept; another shape
// builds a new engine, which SimGrid 3.32 bears some hundred times per process (1-2 ms each at
// first, growing), so sweeps over machines belong into several processes. fork() waits for the job
// that runs; a child goes on with the engine on a thread of its own.
//
// Latencies are not SimGrid's business here: a collective spends them before its flows start. So
// all flows have zero raw latency and equal weights, which is fair sharing.

#include <functional>
#include <memory>

#include "sim/machine/machine.h"
#include "sim/units/units.h"

namespace orrery::des {

class SimGridNetwork {
 public:
  // Whoever has events of its own between those of the network. Dates are the client's.
  class Client {
   public:
    virtual ~Client() = default;
    // Date of the next own event; infinity for none.
    [[nodiscard]] virtual Seconds next_event() const = 0;
    virtual void handle_events_until(Seconds now) = 0;
    // One flow of `activity` has ended.
    virtual void on_progress(int activity, Seconds now) = 0;
  };

  void start_flow(int from, int to, Bytes bytes, int activity, Seconds now);

  [[nodiscard]] bool is_idle() const;
  // Advances the network and the client's events together until the network is idle.
  void run(Client& client);

  struct Impl;
  explicit SimGridNetwork(std::unique_ptr<Impl> impl);
  ~SimGridNetwork();
  SimGridNetwork(const SimGridNetwork&) = delete;
  SimGridNetwork& operator=(const SimGridNetwork&) = delete;

 private:
  std::unique_ptr<Impl> impl_;
};

// Whether this build has SimGrid.
bool has_simgrid();

// Runs `job` on the engine's thread with a network for `machine`, idle at the start, and waits for
// it. What the job throws is thrown here. Throws std::invalid_argument in a build without SimGrid.
void with_simgrid(const Machine& machine, const std::function<void(SimGridNetwork&)>& job);

}  // namespace orrery::des
