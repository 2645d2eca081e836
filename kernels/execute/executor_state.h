#pragma once

// What stands behind an Executor and its prepared steps.

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/cuda/gate.h"
#include "kernels/execute/communicators.h"
#include "kernels/execute/executor.h"
#include "kernels/execute/rank_device.h"
#include "kernels/execute/rank_step.h"
#include "kernels/execute/rank_team.h"
#include "kernels/execute/step_tables.h"
#include "kernels/execute/watch.h"

namespace orrery {

struct PreparedStep::State {
  Plan plan;
  LaunchMode mode = LaunchMode::kEager;
  std::vector<std::unique_ptr<RankStep>> ranks;
  int num_micro_batches = 1;
  std::vector<StepPart> without_sequences;  // a part for each, of ranks that compute FFNs alone
  Seconds limit;                            // of a run
  bool counts_faults = false;               // some op of some rank, RankStep::first_faults()
  bool has_run = false;                     // the first run may have to connect ranks and load code
  std::vector<PrefillChunk> chunks;         // that it was bound with
  std::vector<int> chunk_ranks;             // data-parallel, of these
  bool is_bound = false;                    // every launch is made, since a run has enqueued them
  std::vector<std::vector<std::int64_t>> sampled;  // StepPart::sampled of the last run

  [[nodiscard]] RankStep& rank(int number) const {
    return *ranks[static_cast<std::size_t>(number)];
  }
};

struct Executor::State {
  // Makes contexts, communicators, weights, caches and tables.
  explicit State(ExecutorSetup executor_setup);
  // Work of a failed step may wait for ranks that will not come: it is ended before anything is
  // freed.
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  [[nodiscard]] RankDevice& rank(int number) const {
    return *ranks[static_cast<std::size_t>(number)];
  }
  // Opens communicators that `plan` needs and that are not there yet.
  void open(const Plan& plan);
  // A part for each micro-batch of each data-parallel rank, checked against the plan and the cache.
  [[nodiscard]] std::vector<StepPart> split(const PreparedStep::State& step,
                                            const StepInput& input) const;
  // Throws std::invalid_argument for more rows than the executor was made for.
  void check_rows(const PreparedStep::State& step) const;
  void bind(PreparedStep::State& step, const std::vector<StepPart>& parts, const StepInput& input);
  // bind(), where the step was bound with other prefill chunks, or another was bound before this
  // one ran. Throws std::invalid_argument for other chunks of a captured one.
  void bind_again(PreparedStep::State& step, const std::vector<StepPart>& parts,
                  const StepInput& input);
  // `gate`: the GPUs begin when all ranks have enqueued their step.
  StepOutput run(PreparedStep::State& step, const std::vector<StepPart>& parts,
                 cuda::Gate* gate = nullptr);
  // Fills RankStep::num_nodes() of all ranks, where it is empty.
  void count_nodes(PreparedStep::State& step);
  // The last rank to have enqueued its part opens the gate.
  void enqueue_gated(cuda::Gate& gate, int r, RankStep& step, std::atomic<int>& num_enqueued);
  // work(rank) on all ranks under the eyes of the watch. Throws what the first rank threw.
  void run_watched(PreparedStep::State& step, const std::function<void(int rank)>& work);
  // What ops of the last run counted as tokens whose scores are no numbers, where some did: of the
  // first op and rank of this process.
  [[nodiscard]] std::optional<RankError> find_faults(const PreparedStep::State& step) const;
  // Whether it is true in all processes.
  [[nodiscard]] bool agree(bool is_true) const;
  // Of several processes: the longest times, and tokens of whoever has them.
  void combine(StepOutput& output) const;
  [[nodiscard]] Watch::Setup watch_setup();
  [[nodiscard]] Bytes held_by_others(int r) const {
    const auto& held = others[static_cast<std::size_t>(r)];
    return held ? held->bytes : Bytes(0);
  }
  // The parts of one rank: micro-batches of a data-parallel rank follow each other. Empty ones of
  // ranks without sequences.
  [[nodiscard]] std::span<const StepPart> parts_of(const PreparedStep::State& step,
                                                   const std::vector<StepPart>& parts, int r) const;
  // work(rank) in the thread of each rank, watched. Throws as RankTeam::run, or run_apart where the
  // phase is_apart(); an error without a rank gets the rank and the phase.
  void run_phase(RunPhase phase, const std::function<void(int rank)>& work);
  // work(rank) in the thread of the rank, after the fault that is asked for there.
  void in_phase(int r, RunPhase phase, const std::function<void(int rank)>& work);
  // Adds what every rank's memory grew by while `work` ran, in this thread, to a term of it.
  template <typename Work>
  void measure(Bytes RankMemory::* term, const Work& work) {
    std::vector<Bytes> before(ranks.size());  // by rank, of this process
    team.run_apart([&](int r) { before[static_cast<std::size_t>(r)] = device_memory_in_use(); });
    work();
    team.run_apart([&](int r) {
      rank(r).memory.*term += device_memory_in_use() - before[static_cast<std::size_t>(r)];
    });
  }

  ExecutorSetup setup;
  PhaseFault phase_fault;
  std::vector<std::optional<HeldMemory>> others;  // by rank, before this process had a context
  std::unique_ptr<Watch> watch;  // destroyed last: it sees to it that the rest goes
  const PreparedStep::State* running = nullptr;
  const PreparedStep::State* bound_last = nullptr;
  std::vector<std::int64_t> own_calls;  // by rank, of our all-reduce kernels before this step
  RankTeam team;
  Communicators communicators;
  std::vector<std::unique_ptr<RankDevice>> ranks;  // null for those of other processes
};

// Throws std::invalid_argument naming the op for a kernel that cannot be executed.
void check_kernels(const Plan& plan);

}  // namespace orrery
