#pragma once

// One step on one rank: a plan bound to the rank's memory, perhaps captured.
//
//   upload of the tables | zero the residual | tasks in order ... | copy back of sampled tokens
//                        |<------------- captured ------------->|
//
// A host op d2h_sync of counts makes the rank's thread wait, while it enqueues, for the copy of
// what the op reads: such a step is not captured. Of a layer by itself (is_layer_plan) the inputs
// have memory of their own, which give() fills, and nothing is uploaded or zeroed.
//
// Stream 0 begins and ends a step. A stream with tasks of its own starts when stream 0 has zeroed
// the residual and is waited for at the end; in between, events carry what event_waits() finds.
// Everything here runs in the rank's thread. Only bind() and capture() allocate, and neither waits
// for other ranks: a rank may allocate only while no collective waits for its launches.

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/execute/communicators.h"
#include "kernels/execute/context_share.h"
#include "kernels/execute/even_exchange.h"
#include "kernels/execute/rank_device.h"
#include "kernels/execute/rank_program.h"
#include "kernels/execute/rank_team.h"
#include "kernels/execute/side_layout.h"
#include "kernels/execute/step_tables.h"
#include "kernels/kernel_spec.h"
#include "kernels/megakernel/megakernel.h"

namespace orrery {

// First expert that this op refers to, on a rank whose own begin with `first_of_rank`.
// `index_shuffling` may sort an aligned block of experts larger than the rank's own; then the first
// of that block.
std::int64_t first_expert_of(const Plan& plan, const Op& op, std::int64_t first_of_rank);

// Whether it is a kernel that counts tokens whose scores are no numbers, in its slot "faults".
bool counts_faults(const Op& op);

class RankStep {
 public:
  // Takes the arena. `plan` and the others outlive it. Throws std::invalid_argument for what cannot
  // be executed.
  RankStep(const Plan& plan, LaunchMode mode, const ExecutorSetup& setup, RankDevice& rank,
           Communicators& communicators, const RankTeam& team);

  // Makes the launches for the parts of this rank, one for each micro-batch, checked against
  // rows(). Of one micro-batch those of later layers are made when they are first enqueued, while
  // the GPU computes the layers before: they allocate and load nothing, as all that they need is
  // there for the first layers. Until then no other step of the rank may be bound. Throws
  // std::invalid_argument naming rank and op.
  void bind(std::span<const StepPart> parts);
  // Captures what bind() made; counts_nodes: and fills num_nodes(), which takes longer.
  void capture(bool counts_nodes);
  // Fills num_nodes() without keeping the graph.
  void count_nodes();

  // Writes the tables of the rank's parts where the next upload() takes them from. `all`: of the
  // data-parallel ranks, which give each other rows where they have even parts of those of all.
  void stage(std::span<const StepPart> parts, std::span<const StepPart> all);
  // Enqueues a step: graph or launches, whichever there is, between the rank's start and end
  // events, and the copy of sampled tokens to sampled().
  void enqueue();
  // The same launch by launch, counting what each task writes that is not finite; and, once that
  // has ended, the first task that wrote some, -1: none. num_found: how many values.
  void enqueue_checked();
  int first_not_finite(std::uint32_t& num_found);
  // The same, keeping what each index_shuffling counts: make_counts() on all ranks first, since it
  // allocates; once the step has ended, the counts of the tasks that have some.
  void make_counts();
  void enqueue_counted();
  std::vector<ExpertCounts> take_counts();
  // The same, with the host's time for each task.
  void enqueue_timed(std::vector<double>& seconds);
  // Names of the all-reduces that our own kernels serve, in order.
  [[nodiscard]] const std::vector<std::string>& own_all_reduces() const { return own_all_reduces_; }
  // Until the step and the copy of its results have ended, or another rank has failed.
  void wait();
  // Tokens of the logits' rows of a micro-batch, of the last step of the rank, once it has ended.
  // Empty where the rank gives none: the first rank of the last stage's tensor-parallel groups
  // does, and where context-parallel ranks have the whole model each of them, of which rows
  // sampled_row() tells.
  [[nodiscard]] std::span<const std::int32_t> sampled(int micro_batch) const;
  // Which of them sampled row `row` of the step is; -1: none.
  [[nodiscard]] std::int64_t sampled_row(int micro_batch, std::size_t row) const {
    return parts_[static_cast<std::size_t>(micro_batch)].sampled_rows[row];
  }
  // Their logits, [rows, vocab]; empty likewise.
  [[nodiscard]] std::vector<float> logits(int micro_batch) const;

  // Writes `values` (one for each element, rounded to its format) to input `name` of a layer.
  // Throws std::invalid_argument for a tensor that is no input of it on this rank, or of another
  // size.
  void give(std::string_view name, std::span<const float> values);
  // What tensor `name` holds now: of outputs, what the last step left. Throws likewise, and for
  // formats other than bf16, fp32 and i32.
  [[nodiscard]] std::vector<float> take(std::string_view name) const;
  // Of a step that is one kernel: keeps when its instructions run from now on, and those of its
  // last run. Throw std::invalid_argument for other steps.
  void keep_instruction_times();
  [[nodiscard]] megakernel::TimedProgram instruction_times() const;
  void lose_value(std::int32_t unit);                           // Executor::lose_value
  void set_steps(std::int64_t steps);                           // of a launch
  [[nodiscard]] std::vector<std::int32_t> step_tokens() const;  // [steps, sequences], of the last
  // By task, what ops of ExecutorSetup::recorded_kernels wrote first of all; empty for others.
  [[nodiscard]] std::vector<std::vector<float>> recorded() const;
  // The first task that counted more tokens whose scores are no numbers in the last step than rows
  // pad its prompts, which hold anything (counts_faults()).
  struct Faults {
    std::size_t task = 0;
    std::int32_t tokens = 0;
  };
  [[nodiscard]] std::optional<Faults> first_faults() const;

  [[nodiscard]] const StepRows& rows(int micro_batch) const {
    return parts_[static_cast<std::size_t>(micro_batch)].rows;
  }
  // Throws std::invalid_argument where even parts, if the plan has them, do not hold the tokens of
  // all data-parallel ranks.
  void check_even(std::span<const StepPart> all) const;
  [[nodiscard]] const std::vector<Task>& tasks() const { return tasks_; }
  // Kernels, copies and memsets of each task, of what comes before the first, and after the last;
  // the first empty until they are counted.
  [[nodiscard]] const std::vector<int>& num_nodes() const { return num_nodes_; }
  [[nodiscard]] int num_nodes_before() const { return num_nodes_before_; }
  [[nodiscard]] int num_results() const;
  [[nodiscard]] const std::vector<int>& streams() const { return streams_; }

 private:
  struct Part {
    StepRows rows;  // of prompts and decodes over context-parallel ranks those of all
    ContextShare share;
    TableLayout layout;
    ContextLayout context;
    std::vector<PrefillChunk> prefill;
    std::vector<PrefillPiece> pieces;
    std::vector<RankKeys> keys_of_ranks;     // of a ring
    std::vector<std::int64_t> sampled_rows;  // by sampled row, of the step that was staged
    std::int64_t own_seqs = 0;               // sampled rows of the rank
    StepTables tables;
    TensorId next_tokens = -1;  // of sample ops on this rank
    TensorId logits = -1;
    std::int64_t first_result = 0;
  };
  // Of data-parallel ranks with even parts of all ranks' rows.
  struct Even {
    StepTables tables;  // of ops on even parts
    EvenTables moves;
    EvenLayout layout;
  };
  struct Zeroed {
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
  };

  void find_parts();
  void find_even();
  void find_events();
  void find_slots();
  void find_inputs();
  void find_host_copies();
  void find_recorded();
  void find_faults();
  void find_counts();
  void find_log_sums();
  [[nodiscard]] std::optional<TensorId> find_tensor(std::string_view name) const;
  void set_tables(std::span<const StepPart> parts);
  void set_context(Part& part);
  void set_even();
  [[nodiscard]] const StepTables& tables_of(const Task& task) const;
  void bind_megakernel();
  // Of the cache that the task's op uses; -1: none.
  [[nodiscard]] std::int64_t kv_layer(const Task& task) const;
  Launch bind_task(const Task& task);
  Launch bind_kernel(const Task& task, std::span<const Operand> reads,
                     std::span<const Operand> writes);
  Launch bind_host(const Op& op);
  Operand operand(TensorId id, std::int32_t copy) const;
  // Of a view of rows with a tensor of its own, which row_views_ keeps.
  Operand viewed(const TensorView& view, std::int32_t copy);
  // Whether ranks of another side write it into this one's memory.
  [[nodiscard]] bool lands(TensorId id) const {
    return sides_ != nullptr && side_layout_.lands(id);
  }
  [[nodiscard]] Operand landing(TensorId id) const;
  // connects: NCCL may have to connect ranks, as it does for what a group sends for the first time.
  // It then allocates, which may wait for what the GPU has been given, in locks that threads of
  // other ranks need to go on: such an op is called once the GPU has done all before it. Else a
  // pipeline stage that waits for the one before it holds that up. While an executor warms up, each
  // op of NCCL that a step runs for the first time is called so.
  void enqueue_tasks(bool connects);
  [[nodiscard]] bool is_nccl(const Task& task) const;  // of a task that is bound
  [[nodiscard]] bool may_connect(const Task& task);
  void wait_for_streams();
  void enqueue_step(bool replays);
  // Rows that an op leaves untouched are not looked at: what it writes first is zeroed before.
  void zero_writes(const Task& task, const cuda::Stream& stream);
  void record(const Task& task, const cuda::Stream& stream);
  void copy_counts(const Task& task, const cuda::Stream& stream);
  // What the task wrote is checked, or made NaN.
  void visit_writes(const Task& task, const cuda::Stream& stream, bool poisons);
  [[nodiscard]] bool has_results(const Part& part) const;
  // Kernel, memcpy and memset nodes captured so far.
  [[nodiscard]] int captured_nodes();
  // Throws again with rank and the task at hand, as std::invalid_argument or RankError.
  [[noreturn]] void rethrow_named() const;

  std::optional<megakernel::Megakernel> megakernel_;  // in place of all launches
  const Plan& plan_;
  const ExecutorSetup& setup_;
  RankDevice& rank_;
  Communicators& communicators_;
  const RankTeam& team_;
  std::vector<Task> tasks_;
  std::vector<std::string> names_;   // of the plan's ops, as they are printed
  std::vector<OperandSlots> slots_;  // by op, of the rank's kernels
  std::vector<std::int64_t> copies_;
  BufferPlan buffers_;
  KvLayers layers_;
  SideLayout side_layout_;
  const SideWorkspace* sides_ = nullptr;  // of what is bound; null: NCCL moves rows between sides
  std::shared_ptr<cuda::DeviceBuffer<std::byte>> arena_;
  std::shared_ptr<cuda::DeviceBuffer<std::byte>> tables_;
  RowMoves moves_;
  std::vector<Part> parts_;      // by micro-batch
  std::list<Tensor> row_views_;  // of what is bound
  Even even_;
  std::vector<Zeroed> zeroed_;
  // Inputs of a layer, by tensor id.
  std::map<TensorId, cuda::DeviceBuffer<std::byte>> inputs_;
  // What d2h_sync ops have copied, by tensor id, and the first of them that copies it.
  struct HostCopy {
    cuda::PinnedBuffer<std::int32_t> counts;
    OpId since = 0;
  };
  std::map<TensorId, HostCopy> host_copies_;
  std::vector<bool> counts_are_there_;  // by task, as in BindContext
  cuda::OrderEvent counts_read_;        // by the d2h_sync op that is waited for
  cuda::OrderEvent came_here_;          // a stream, before an op of NCCL that connects ranks
  std::vector<OpId> first_writers_;     // by tensor id; -1: nothing on this rank writes it
  std::vector<std::optional<cuda::DeviceBuffer<float>>> recorded_;  // by task
  // Of each copy of an op that counts faults a word of its own, with its task: layers share what
  // lies in the arena. Copied to the host behind the step.
  struct FaultWord {
    std::size_t task = 0;
    std::size_t place = 0;
  };
  std::map<std::pair<TensorId, std::int32_t>, FaultWord> fault_words_;
  std::optional<cuda::DeviceBuffer<std::int32_t>> faults_;
  std::optional<cuda::PinnedBuffer<std::int32_t>> host_faults_;
  std::int64_t table_bytes_ = 0;
  std::vector<int> streams_;                               // of the tasks, ascending, 0 among them
  std::vector<std::vector<std::int32_t>> waits_;           // by task: tasks
  std::vector<std::unique_ptr<cuda::OrderEvent>> events_;  // by task; null where nobody waits
  std::vector<Launch> launches_;                           // by task; live as long as the graph
  std::vector<bool> is_own_all_reduce_;                    // by op
  std::vector<std::string> own_all_reduces_;
  std::optional<cuda::DeviceBuffer<std::uint32_t>> not_finite_;  // by task, while checking
  // By task, of index_shuffling, while counting; else empty.
  std::vector<std::optional<cuda::PinnedBuffer<std::int32_t>>> expert_counts_;
  std::vector<double>* launch_times_ = nullptr;  // by task, while timing
  std::optional<cuda::Graph> graph_;
  // By tensor id: of parts of the keys, -infinity where a part has none.
  std::vector<bool> is_log_sum_;
  std::vector<int> num_nodes_;
  std::size_t current_ = 0;  // task being bound or enqueued, for errors
  int num_nodes_before_ = 0;
  std::int32_t first_vocab_row_ = 0;
  LaunchMode mode_;
  bool counts_nodes_ = false;
  bool has_connected_ = false;     // its ops of NCCL have run one by one
  bool announces_layers_ = false;  // to the setup's hook, which is there then
};

}  // namespace orrery
