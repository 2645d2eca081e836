#include "kernels/execute/wrong_plan.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace orrery {
namespace {

std::size_t find_op(const Plan& plan, std::string_view name) {
  const auto found =
      std::ranges::find(plan.ops(), name, [](const Op& op) { return printed_name(op); });
  if (found == plan.ops().end()) {
    throw std::invalid_argument("the plan has no op \"" + std::string(name) + "\"");
  }
  return static_cast<std::size_t>(found - plan.ops().begin());
}

// The plan with other ops, as many as it has.
Plan with_ops(const Plan& plan, std::vector<Op> ops) {
  Plan result;
  for (GroupId group = 0; group < plan.num_groups(); ++group) {
    const auto ranks = plan.ranks(group);
    result.add_group({ranks.begin(), ranks.end()});
  }
  for (const Split& split : plan.splits()) result.add_split(split);
  for (const Tensor& tensor : plan.tensors()) result.add_tensor(tensor);
  for (Op& op : ops) result.add_op(std::move(op));
  for (const Repeat& repeat : plan.repeats()) result.add_repeat(repeat);
  return result;
}

}  // namespace

std::vector<std::string> collective_names(const Plan& plan) {
  std::vector<std::string> names;
  for (const Op& op : plan.ops()) {
    if (std::holds_alternative<CommOp>(op.body)) names.push_back(printed_name(op));
  }
  return names;
}

Plan without_op(const Plan& plan, std::string_view name) {
  std::vector<Op> ops = plan.ops();
  Op& op = ops[find_op(plan, name)];
  op.body = HostOp{.kind = HostKind::kLaunchGap};
  op.reads.clear();
  op.writes.clear();
  return with_ops(plan, std::move(ops));
}

Plan with_op_late(const Plan& plan, std::string_view name) {
  const std::size_t at = find_op(plan, name);
  std::vector<Op> ops = plan.ops();
  const auto op = ops.begin() + static_cast<std::ptrdiff_t>(at);
  const auto reader = std::find_if(op + 1, ops.end(), [&](const Op& later) {
    const auto ranks = plan.ranks(op->ranks);
    return std::ranges::find_first_of(later.reads, op->writes, {}, &TensorView::tensor,
                                      &TensorView::tensor) != later.reads.end() &&
           std::ranges::any_of(ranks, [&](int rank) { return plan.contains(later.ranks, rank); });
  });
  if (reader == ops.end()) {
    throw std::invalid_argument("no op reads what \"" + std::string(name) + "\" writes");
  }
  std::rotate(op, op + 1, reader + 1);
  return with_ops(plan, std::move(ops));
}

}  // namespace orrery
