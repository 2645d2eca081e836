// SMs for collectives that run beside kernels. A kernel with a block for each SM keeps a collective
// of another stream waiting until it ends, so what may run beside one that moves much leaves it
// some, where the kernel's launcher can. Such ops neither have to end before the collective begins
// nor the other way round:
//
//   0   A attention | B attention | A experts | ..      B attention and A experts leave SMs
//   2               | A dispatch  | B dispatch | ..

#include <algorithm>
#include <cstddef>
#include <set>
#include <variant>
#include <vector>

#include "sim/parallel/rewrite.h"
#include "sim/plan/sides.h"

namespace orrery {
namespace {

constexpr int kSmsOfCollectives = 24;    // of NCCL on two and four H200s
constexpr double kLeastBytes = 1 << 20;  // fewer take a few microseconds

constexpr std::int32_t kNone = -1;

bool holds_sms(const Plan& plan, const Op& op) {
  const auto* const comm = std::get_if<CommOp>(&op.body);
  if (comm == nullptr || comm->kind == CollectiveKind::kSendRecv || moves_by_copies(plan, op)) {
    return false;
  }
  const auto moves_much = [&](const TensorView& view) {
    return bytes_of(plan.tensors()[static_cast<std::size_t>(view.tensor)]).value() >= kLeastBytes;
  };
  return std::ranges::any_of(op.reads, moves_much) || std::ranges::any_of(op.writes, moves_much);
}

bool can_leave_sms(const Op& op) {
  const auto* const kernel = std::get_if<KernelOp>(&op.body);
  return kernel != nullptr && kernel_spec(kernel->kernel).leaves_sms;
}

// The ops of one rank as tasks, a repeated run as two copies of itself: whatever lies beside what
// within a run or from copy to copy does so there.
class Tasks {
 public:
  Tasks(const Plan& plan, int rank, std::size_t num_streams)
      : plan_(plan),
        rank_(rank),
        writer_(plan.tensors().size(), kNone),
        latest_(plan.ops().size(), kNone),
        last_(num_streams, kNone),
        holding_(num_streams, kNone) {}

  // Marks the ops that may run beside a collective which holds SMs.
  void mark(std::vector<bool>& beside) && {
    auto run = plan_.repeats().begin();
    for (OpId id = 0; static_cast<std::size_t>(id) < plan_.ops().size();) {
      const bool is_repeated = run != plan_.repeats().end() && run->first == id;
      const OpId end = is_repeated ? run->last : id + 1;
      const std::int64_t copies = is_repeated ? std::min<std::int64_t>(run->count, 2) : 1;
      for (std::int64_t copy = 0; copy < copies; ++copy) {
        for (OpId op = id; op < end; ++op) add(op, beside);
      }
      if (is_repeated) ++run;
      id = end;
    }
  }

 private:
  struct Task {
    OpId op = 0;
    std::vector<std::int32_t> ended;  // by stream: the latest task that has ended before it begins
  };

  [[nodiscard]] const Op& op_of(std::int32_t task) const {
    const OpId op = tasks_[static_cast<std::size_t>(task)].op;
    return plan_.ops()[static_cast<std::size_t>(op)];
  }
  [[nodiscard]] std::size_t stream_of(std::int32_t task) const {
    return static_cast<std::size_t>(op_of(task).stream);
  }

  void wait_for(Task& task, std::int32_t before) const {
    if (before == kNone) return;
    const std::vector<std::int32_t>& known = tasks_[static_cast<std::size_t>(before)].ended;
    for (std::size_t i = 0; i < known.size(); ++i)
      task.ended[i] = std::max(task.ended[i], known[i]);
    std::int32_t& latest = task.ended[stream_of(before)];
    latest = std::max(latest, before);
  }

  void add(OpId id, std::vector<bool>& beside) {
    const Op& op = plan_.ops()[static_cast<std::size_t>(id)];
    if (std::holds_alternative<HostOp>(op.body) || !plan_.contains(op.ranks, rank_)) return;
    const auto stream = static_cast<std::size_t>(op.stream);
    const auto number = static_cast<std::int32_t>(tasks_.size());
    Task task{.op = id, .ended = std::vector<std::int32_t>(last_.size(), kNone)};
    wait_for(task, last_[stream]);
    for (const TensorId tensor : op.reads)
      wait_for(task, writer_[static_cast<std::size_t>(tensor)]);
    for (const OpId after : op.after) wait_for(task, latest_[static_cast<std::size_t>(after)]);
    for (std::size_t other = 0; other < last_.size(); ++other) {
      if (other != stream && holding_[other] > task.ended[other]) {
        beside[static_cast<std::size_t>(id)] = true;
      }
    }
    if (holds_sms(plan_, op)) {
      holding_[stream] = number;
      mark_running(task, stream, beside);
    }
    last_[stream] = number;
    for (const TensorId tensor : op.writes) writer_[static_cast<std::size_t>(tensor)] = number;
    latest_[static_cast<std::size_t>(id)] = number;
    tasks_.push_back(std::move(task));
  }

  // Those of other streams that the collective does not wait for.
  void mark_running(const Task& collective, std::size_t stream, std::vector<bool>& beside) const {
    for (std::size_t other = 0; other < last_.size(); ++other) {
      if (other == stream) continue;
      for (std::int32_t task = last_[other]; task > collective.ended[other]; --task) {
        if (stream_of(task) != other) continue;
        beside[static_cast<std::size_t>(tasks_[static_cast<std::size_t>(task)].op)] = true;
      }
    }
  }

  const Plan& plan_;
  int rank_;
  std::vector<Task> tasks_;
  std::vector<std::int32_t> writer_;   // by tensor: its latest
  std::vector<std::int32_t> latest_;   // by op: its latest copy
  std::vector<std::int32_t> last_;     // by stream
  std::vector<std::int32_t> holding_;  // by stream: the last that holds SMs
};

std::vector<bool> beside_collectives(const Plan& plan) {
  std::size_t num_streams = 0;
  std::set<int> ranks;  // the first of each group: others of it do the same
  for (const Op& op : plan.ops()) {
    num_streams = std::max(num_streams, static_cast<std::size_t>(op.stream) + 1);
    ranks.insert(plan.ranks(op.ranks).front());
  }
  std::vector<bool> beside(plan.ops().size());
  for (const int rank : ranks) Tasks(plan, rank, num_streams).mark(beside);
  return beside;
}

}  // namespace

bool room_for_collectives_applies(const Plan& plan, const Mesh& /*mesh*/) {
  const int first = plan.ops().empty() ? 0 : plan.ops().front().stream;
  return std::ranges::any_of(plan.ops(), [&](const Op& op) { return op.stream != first; }) &&
         std::ranges::any_of(plan.ops(), [&](const Op& op) { return holds_sms(plan, op); }) &&
         std::ranges::any_of(plan.ops(), can_leave_sms);
}

Plan room_for_collectives_pass(const Plan& plan, const Mesh& /*mesh*/) {
  const std::vector<bool> beside = beside_collectives(plan);
  Rewrite rewrite(plan, 1);
  rewrite.copy_tensors([](Tensor&) {});
  for (OpId id = 0; static_cast<std::size_t>(id) < plan.ops().size(); ++id) {
    Op op = plan.ops()[static_cast<std::size_t>(id)];
    if (beside[static_cast<std::size_t>(id)] && can_leave_sms(op)) {
      std::get<KernelOp>(op.body).free_sms = kSmsOfCollectives;
    }
    rewrite.begin(id);
    rewrite.copy(id, std::move(op));
  }
  return rewrite.finish();
}

}  // namespace orrery
