// Which experts a step's tokens choose, read while it runs once more.

#include <algorithm>
#include <variant>
#include <vector>

#include "kernels/execute/executor_state.h"
#include "kernels/execute/rank_step.h"

namespace orrery {
namespace {

bool is_shuffling(const Op& op) {
  const auto* kernel = std::get_if<KernelOp>(&op.body);
  return kernel != nullptr && kernel->kernel == "index_shuffling";
}

const Op& op_of(const Plan& plan, const Task& task) {
  return plan.ops()[static_cast<std::size_t>(task.op)];
}

}  // namespace

void RankStep::make_counts() {
  expert_counts_.resize(tasks_.size());
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    const Op& op = op_of(plan_, tasks_[i]);
    if (!is_shuffling(op)) continue;
    const Dims& dims = std::get<KernelOp>(op.body).dims;
    expert_counts_[i].emplace(static_cast<std::size_t>(dim(dims, "experts")));
  }
}

void RankStep::enqueue_counted() {
  try {
    enqueue_step(/*replays=*/false);
    rank_.watch().waiting(rank_.rank());
  } catch (...) {  // named, and thrown again
    rethrow_named();
  }
}

void RankStep::copy_counts(const Task& task, const cuda::Stream& stream) {
  if (!expert_counts_[current_]) return;
  const TensorId counts = op_of(plan_, task).writes.front();
  const cuda::PinnedBuffer<std::int32_t>& to = *expert_counts_[current_];
  ORRERY_CUDA(cudaMemcpyAsync(to.get(), operand(counts, task.copy).data,
                              to.size() * sizeof(std::int32_t), cudaMemcpyDeviceToHost,
                              stream.get()));
}

std::vector<ExpertCounts> RankStep::take_counts() {
  std::vector<ExpertCounts> found;
  for (std::size_t i = 0; i < expert_counts_.size(); ++i) {
    if (!expert_counts_[i]) continue;
    const cuda::PinnedBuffer<std::int32_t>& counts = *expert_counts_[i];
    const Op& op = op_of(plan_, tasks_[i]);
    found.push_back({.op = printed_name(op),
                     .copy = tasks_[i].copy,
                     .rank = rank_.rank(),
                     .first_expert = first_expert_of(plan_, op, rank_.first_expert()),
                     .rows = {counts.get(), counts.get() + counts.size()}});
  }
  expert_counts_.clear();
  return found;
}

std::vector<ExpertCounts> Executor::expert_counts(PreparedStep& step, const StepInput& input) {
  State& state = *state_;
  PreparedStep::State& prepared = step.state();
  if (std::ranges::none_of(prepared.plan.ops(), is_shuffling)) return {};
  const std::vector<StepPart> parts = state.split(prepared, input);
  state.bind_again(prepared, parts, input);
  state.team.run_apart([&](int r) { prepared.rank(r).make_counts(); });
  std::vector<std::vector<ExpertCounts>> by_rank(static_cast<std::size_t>(num_ranks()));
  state.run_watched(prepared, [&](int r) {
    RankStep& own = prepared.rank(r);
    own.stage(state.parts_of(prepared, parts, r), parts);
    own.enqueue_counted();
    own.wait();
    by_rank[static_cast<std::size_t>(r)] = own.take_counts();
  });
  std::vector<ExpertCounts> all;
  for (const auto& of_rank : by_rank) all.insert(all.end(), of_rank.begin(), of_rank.end());
  return all;
}

}  // namespace orrery
