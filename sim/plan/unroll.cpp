#include <algorithm>
#include <string>
#include <utility>

#include "sim/plan/plan.h"

namespace orrery {
namespace {

constexpr std::int32_t kNoRun = -1;

// What the uses of a tensor so far say about copies of it.
struct Uses {
  std::int64_t copies = 0;           // 0: no use yet
  bool is_shared = false;            // one tensor for all copies after all
  std::int32_t written_in = kNoRun;  // the last run that wrote it before reading it
};

// One use of `tensor` by an op that runs `count` times, in run `run` (kNoRun: in none).
void add_use(Uses& uses, const Tensor& tensor, std::int32_t run, std::int64_t count,
             bool is_write) {
  switch (tensor.role) {
    case TensorRole::kInput:
      uses.is_shared = true;
      return;
    case TensorRole::kWeight:
    case TensorRole::kKvCache:
    case TensorRole::kState:
      if (uses.copies != 0 && uses.copies != count) uses.is_shared = true;
      uses.copies = count;
      return;
    case TensorRole::kActivation:
    case TensorRole::kOutput:
      uses.copies = std::max(uses.copies, count);
      if (is_write) uses.written_in = run;
      if (run == kNoRun || uses.written_in != run) uses.is_shared = true;
      return;
  }
}

std::string copy_name(const std::string& name, std::int64_t copy) {
  return name + "#" + std::to_string(copy);
}

// Writes the copies of all ops in order; ids of the source plan are looked up through the members.
class Unroller {
 public:
  explicit Unroller(const Plan& plan)
      : plan_(plan), copies_(num_copies(plan)), latest_(plan.ops().size()) {
    for (GroupId group = 0; group < plan.num_groups(); ++group) {
      const auto ranks = plan.ranks(group);
      unrolled_.add_group({ranks.begin(), ranks.end()});
    }
    for (const Split& split : plan.splits()) unrolled_.add_split(split);
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      first_copy_.push_back(static_cast<TensorId>(unrolled_.tensors().size()));
      for (std::int64_t copy = 0; copy < copies_[i]; ++copy) {
        Tensor tensor = plan.tensors()[i];
        if (copies_[i] > 1) tensor.name = copy_name(tensor.name, copy);
        unrolled_.add_tensor(std::move(tensor));
      }
    }
  }

  Plan run() && {
    OpId id = 0;
    for (const Repeat& repeat : plan_.repeats()) {
      while (id < repeat.first) add_single(id++);
      for (std::int64_t copy = 0; copy < repeat.count; ++copy) {
        for (id = repeat.first; id < repeat.last; ++id) {
          const Op& op = plan_.ops()[static_cast<std::size_t>(id)];
          add_copy(id, copy, copy_name(op.name, copy));
        }
      }
    }
    while (static_cast<std::size_t>(id) < plan_.ops().size()) add_single(id++);
    return std::move(unrolled_);
  }

 private:
  void add_single(OpId id) { add_copy(id, 0, plan_.ops()[static_cast<std::size_t>(id)].name); }

  void add_copy(OpId id, std::int64_t copy, std::string name) {
    Op op = plan_.ops()[static_cast<std::size_t>(id)];
    op.name = std::move(name);
    for (TensorView& view : op.reads) view.tensor = tensor_copy(view, copy);
    for (TensorView& view : op.writes) view.tensor = tensor_copy(view, copy);
    // The latest copy is that of the same run when `after` points into it, else the last.
    for (OpId& before : op.after) before = latest_[static_cast<std::size_t>(before)];
    latest_[static_cast<std::size_t>(id)] = unrolled_.add_op(std::move(op));
  }

  [[nodiscard]] TensorId tensor_copy(TensorId tensor, std::int64_t copy) const {
    const auto i = static_cast<std::size_t>(tensor);
    return first_copy_[i] + static_cast<TensorId>(copies_[i] > 1 ? copy : 0);
  }

  const Plan& plan_;
  std::vector<std::int64_t> copies_;
  std::vector<OpId> latest_;  // the latest copy written of each op of plan_
  std::vector<TensorId> first_copy_;
  Plan unrolled_;
};

}  // namespace

std::vector<std::int64_t> num_copies(const Plan& plan) {
  const auto& tensors = plan.tensors();
  const auto& repeats = plan.repeats();
  std::vector<Uses> uses(tensors.size());
  std::size_t run = 0;
  for (OpId id = 0; static_cast<std::size_t>(id) < plan.ops().size(); ++id) {
    if (run < repeats.size() && repeats[run].last <= id) ++run;
    const bool is_inside = run < repeats.size() && repeats[run].first <= id;
    const std::int32_t run_idx = is_inside ? static_cast<std::int32_t>(run) : kNoRun;
    const std::int64_t count = is_inside ? repeats[run].count : 1;
    const Op& op = plan.ops()[static_cast<std::size_t>(id)];
    for (const TensorId tensor : op.reads) {
      const auto i = static_cast<std::size_t>(tensor);
      add_use(uses[i], tensors[i], run_idx, count, /*is_write=*/false);
    }
    for (const TensorId tensor : op.writes) {
      const auto i = static_cast<std::size_t>(tensor);
      add_use(uses[i], tensors[i], run_idx, count, /*is_write=*/true);
    }
  }
  std::vector<std::int64_t> copies;
  copies.reserve(uses.size());
  for (const Uses& use : uses) {
    copies.push_back(use.is_shared ? 1 : std::max<std::int64_t>(use.copies, 1));
  }
  return copies;
}

Plan unroll(const Plan& plan) { return Unroller(plan).run(); }

}  // namespace orrery
