#pragma once

// Interpreter 2: a Plan becomes launches on the GPUs of this host, and their Timeline. One thread
// and one device per rank.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/binding/kv_pool.h"
#include "kernels/binding/step_input.h"
#include "kernels/comm/processes/process_group.h"
#include "kernels/execute/fault.h"
#include "kernels/execute/kv_hook.h"
#include "kernels/execute/step_trace.h"
#include "kernels/megakernel/record.h"
#include "sim/megakernel/program.h"
#include "sim/memory/rank_memory.h"
#include "sim/plan/launch_mode.h"
#include "sim/plan/plan.h"
#include "sim/timeline/timeline.h"
#include "sim/units/units.h"

namespace orrery {

inline constexpr int kElsewhere = -1;

struct ExecutorSetup {
  // Any step of the deployment: which weights and KV layers each rank holds follows from it.
  Plan plan;
  RankGrid grid;
  ModelNumbers numbers;
  std::vector<int> devices;        // by rank, CUDA ordinals; kElsewhere: another process has it
  std::uint64_t seed = 1;          // of the weights
  std::int64_t num_kv_blocks = 0;  // per rank
  std::int32_t block_size = 64;
  DType kv_dtype = DType::kBf16;
  std::int64_t max_tokens = 0;     // most rows of a step, on one data-parallel rank
  std::int64_t max_sequences = 0;  // most sequences of a step, on one data-parallel rank
  std::int64_t max_model_len = 0;
  bool only_nccl = false;  // collectives through NCCL alone
  // Called from another thread, with the line of status.txt, when ranks do not stop after one has
  // failed; then the process ends with exit code 1.
  std::function<void(const std::string& status)> last_words;
  // Called when another phase of the run begins, by the thread that uses the executor.
  std::function<void(RunPhase phase)> phase_begun;
  // Of phases, where their own is longer; of steps, where their own is shorter (sanitizers).
  std::optional<Seconds> watch_limit;
  std::optional<Fault> fault;  // for tests: a rank is made to fail
  // For measurements: how long the stream of an op of a rank stands still before it, each time.
  // Called by the thread of the rank. Null: not at all.
  std::function<Seconds(int rank, const std::string& op)> delay_before;
  KvHook* kv_hook = nullptr;  // outlives the executor; null: nothing moves beside steps
  // For checks: what ops of these kernels write first of all, fp32, is kept (recorded()).
  std::vector<std::string> recorded_kernels;
  // Of steps that are one kernel: who gets which rows.
  megakernel::Schedule megakernel_schedule = megakernel::CompileOptions{}.schedule;
  // Several processes, each with the rank of its number, all of which make the same calls:
  // collectives by NCCL, layers of experts that are one kernel on one host alone. Results are the
  // same on all; logits, traces and memory are of the ranks here.
  ProcessGroup processes;
};

struct StepOutput {
  std::vector<std::int32_t> next_tokens;  // of the sampled rows; run_ahead(): step by step
  Seconds duration;  // from the first launch to results on the host, by the host's clock
  Seconds device;    // first rank's start to last rank's end, by events
};

// Rows that the experts of one rank got in one layer.
struct ExpertCounts {
  std::string op;
  std::int32_t copy = 0;
  int rank = 0;
  std::int64_t first_expert = 0;
  std::vector<std::int32_t> rows;  // by expert, from first_expert on
};

// How long the host of one rank takes to enqueue an op, in each of `launches` tasks of a step.
struct LaunchTime {
  std::string op;
  int rank = 0;
  std::int64_t launches = 0;
  Seconds mean;
  Seconds median;
};

// A plan bound to memory on every rank, perhaps captured. Must not outlive its executor.
class PreparedStep {
 public:
  struct State;
  explicit PreparedStep(std::unique_ptr<State> state);
  ~PreparedStep();
  PreparedStep(PreparedStep&&) noexcept;
  PreparedStep& operator=(PreparedStep&&) noexcept;
  [[nodiscard]] const Plan& plan() const;
  [[nodiscard]] LaunchMode mode() const;
  [[nodiscard]] State& state() const { return *state_; }  // the executor's

 private:
  std::unique_ptr<State> state_;
};

// Sets what CUDA and NCCL read from the environment, unless it is set there: asks for all code to
// be loaded ahead, that of this program when a context is made and that of a library when it is
// first used, since loading a kernel waits for what runs, perhaps a collective that waits for this
// thread (0.371 GiB of an H200 is cuBLASLt's code; export CUDA_MODULE_LOADING=LAZY to load what is
// used); NCCL keeps off NVLink multicast, as plans count on no switch that reduces, and counts on
// calls of a communicator in graphs and beside them to follow each other, as an executor's do,
// which takes 1 us off each captured collective and 3 us off each hop to another stream (two
// H200s). Call before the first CUDA call of the process, while it has one thread.
void set_execute_environment();

class Executor {
 public:
  // Allocates and fills weights, caches and tables; opens communicators. Throws
  // std::invalid_argument when the plan asks for what cannot be executed (an unknown kernel, more
  // ranks than GPUs), std::runtime_error naming rank and op when a GPU fails or memory runs out.
  explicit Executor(ExecutorSetup setup);
  ~Executor();

  // Binds `plan`; with kGraph runs it once, so that libraries allocate what they need, and captures
  // it, so that it may be run with any input of the same prefill chunks (tokens and context of
  // each) and at most as many decodes (their contexts may differ). `input` is the first to run;
  // prepare the largest step first, so that the arena is allocated once. Throws
  // std::invalid_argument for what cannot be bound (naming rank and op), for an input that does
  // not fit the plan, for kGraph where the host waits for counts in between (naming the op), and
  // for kMegakernel what megakernel::require_runs() refuses.
  std::unique_ptr<PreparedStep> prepare(const Plan& plan, const StepInput& input, LaunchMode mode);
  // Runs it and waits; an eager step is bound again where its prefill chunks are not those of the
  // last run. Not thread safe. Throws std::invalid_argument for an input that does not fit,
  // RankError naming rank and op when a GPU fails, a step takes much longer than it may (watch.h:
  // 3 s and more) or a layer of experts that is one kernel was given tokens whose scores are no
  // numbers (of rows that pad prompts, which hold anything, fewer are not told), std::runtime_error
  // on SIGINT or SIGTERM (interrupt.h): the executor then runs nothing more.
  StepOutput run(PreparedStep& step, const StepInput& input);
  // Runs it once more, launch by launch, and looks at what each op writes. Throws RankError naming
  // the first op that made a value which is not finite; of a step that is one kernel "megakernel".
  // run() calls it when logits are not finite: where a step gives token 0, which is what rows of
  // NaN give.
  void check_finite(PreparedStep& step, const StepInput& input);
  // Runs it once more, launch by launch, and reads what its index_shuffling ops count: which
  // experts its tokens choose. Ops in their order, rank by rank; none of a plan that routes
  // otherwise or not at all. Throws as run().
  std::vector<ExpertCounts> expert_counts(PreparedStep& step, const StepInput& input);
  // Runs it `runs` times more, launch by launch, and says how long the host took for each op, by
  // rank. Throws as run().
  std::vector<LaunchTime> launch_times(PreparedStep& step, const StepInput& input, int runs);
  // Logits of the sampled rows of the step run last, [rows, vocab], in the order of next_tokens:
  // from the first rank of each tensor-parallel group of the last stage.
  std::vector<float> logits(const PreparedStep& step) const;
  // The last run's records of a rank of this process, by its tasks; empty for those of other
  // kernels.
  std::vector<std::vector<float>> recorded(const PreparedStep& step, int rank) const;
  // Of a plan that is a layer by itself (is_layer_plan), whose steps have no sequences: writes an
  // input of `rank`, one value for each element, and reads what a tensor holds after a run. Inputs
  // are zero until they are given. Both throw std::invalid_argument for a tensor that the layer
  // does not have there.
  void give(PreparedStep& step, int rank, std::string_view tensor, std::span<const float> values);
  std::vector<float> take(const PreparedStep& step, int rank, std::string_view tensor) const;
  // Kernels, copies and memsets that the tasks of a step enqueue on `rank`, together; of a step
  // whose host waits for counts, with those of its last run.
  int num_launches(PreparedStep& step, int rank);
  // Runs it twice more and says when each op ran the second time, from the start of the first op,
  // and which kernels it launched; needs CUPTI. Ranks that replay graphs begin together. Time steps
  // before the first trace: launches of the process are slower from then on. Throws as run() and
  // KernelTrace do, and std::invalid_argument for a step that is one kernel: instruction_times()
  // has its times.
  StepTrace trace(PreparedStep& step, const StepInput& input);

  // Of a step that is one kernel: `steps` of them in one launch, each with the tokens that the one
  // before picked, a position further. Tokens are [steps, sequences]; times are of the launch.
  // Throws std::invalid_argument for other steps, more than megakernel::kMostSteps, or sequences
  // whose blocks or cosines end before the last position; else as run().
  StepOutput run_ahead(PreparedStep& step, const StepInput& input, std::int64_t steps);
  // Runs a step that is one kernel once more and says when its instructions ran, in cycles of each
  // SM's own clock. Throws std::invalid_argument for other steps, else as run().
  megakernel::TimedProgram instruction_times(PreparedStep& step, const StepInput& input);
  // For tests, of such a step: what is written to this unit of its board never arrives; -1: all
  // does. run() then throws RankError within 3 s, naming the SM and its instruction.
  void lose_value(PreparedStep& step, std::int32_t unit);

  // Of the ranks of this process, as cudaMemGetInfo saw it go, less what others held on the devices
  // before.
  [[nodiscard]] std::map<int, RankMemory> memory() const;
  [[nodiscard]] const KvPool& kv(int rank) const;
  // Steps like those to come have run: from now on a new step waits for the GPU before those
  // collectives of NCCL alone of whose kind and size none has run (RankStep).
  void end_warm_up();
  [[nodiscard]] int num_ranks() const;                  // of the plan
  [[nodiscard]] const std::vector<int>& ranks() const;  // of this process

 private:
  struct State;
  void require_scores(PreparedStep& step, const StepInput& input);

  std::unique_ptr<State> state_;
};

}  // namespace orrery
