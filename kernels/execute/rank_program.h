#pragma once

// What one rank does in a step: its ops in order with repeats written out, and which KV layer and
// which rows of the step each of them works on. No CUDA.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/binding/step_input.h"
#include "kernels/execute/hazards.h"
#include "sim/memory/buffers.h"
#include "sim/plan/plan.h"

namespace orrery {

// One op on one rank; `copy` counts the copies of an op that is in a repeat.
struct Task {
  OpId op = 0;
  std::int32_t copy = 0;
  bool operator==(const Task&) const = default;
};
// All tasks of `rank`, in the order in which it enqueues them.
std::vector<Task> rank_tasks(const Plan& plan, int rank);
// Whether task `a` comes before `b`, perhaps of another rank, in the order of the plan.
bool runs_before(const Plan& plan, const Task& a, const Task& b);
// "layers.0.o_proj", or "layers.0.o_proj#3" for copy 3 of a repeat.
std::string task_name(const Plan& plan, const Task& task);

// The micro-batch of an op, 0 where the plan has but one.
int micro_batch_of(const Op& op);
int num_micro_batches(const Plan& plan);

// Where in the whole a rank's part of the axis begins; behind its end where it has none. Throws as
// Plan::ranges_of.
std::int64_t first_on(const Plan& plan, const Axis& axis, int rank);
// Whether a collective sends of each row of `input` the columns alone that the rank has of
// `output`: all_to_all and all_gather into columns that are split, of columns that are not.
bool sends_slice(const Plan& plan, CollectiveKind kind, const Tensor& input, const Tensor& output);
// Whether a collective gathers, of the tokens of a step, the rows that are sampled.
bool gathers_sampled(const Plan& plan, const Op& op);
// Whether, of rows of all ranks, [ranks * rows, columns], one gets its own with the columns of all:
// an all_to_all whose blocks of columns arrive one behind the other, to be put side by side.
bool brings_columns(CollectiveKind kind, const Tensor& input, const Tensor& output,
                    std::int64_t num_ranks);

// Whether it is a layer by itself: no tokens come in and none are sampled, so what it reads is
// given (Executor::give) and what it writes is taken.
bool is_layer_plan(const Plan& plan);

// Ops of `rank` at which the host waits for counts (d2h_sync with reads), in order: they cannot be
// captured.
std::vector<OpId> host_waits(const Plan& plan, int rank);

// Which layer of the rank's cache (KvPool) each KV tensor is: layers are counted as the rank runs
// them, those of a repeat copy by copy. Micro-batches share layers. The same for every step of a
// deployment, since each step appends to the cache in every layer.
struct KvLayers {
  std::vector<std::int64_t> first;   // by tensor id: layer of copy 0; -1: no KV tensor of this rank
  std::vector<std::int64_t> stride;  // by tensor id: layers from copy to copy, 0: one for all
  std::int64_t count = 0;
  [[nodiscard]] std::int64_t layer(TensorId tensor, std::int32_t copy) const {
    const auto i = static_cast<std::size_t>(tensor);
    return first[i] < 0 ? -1 : first[i] + stride[i] * copy;
  }
};
KvLayers kv_layers(const Plan& plan, int rank);

// Of one micro-batch on one rank.
StepRows step_rows(const Plan& plan, int rank, int micro_batch);

// The memory that each task touches, for event_waits(): arena bytes and KV layers. Throws
// std::invalid_argument where `after` names an op that this rank has not run before.
std::vector<TaskMemory> task_memory(const Plan& plan, int rank, const std::vector<Task>& tasks,
                                    const BufferPlan& buffers, const KvLayers& layers);

}  // namespace orrery
