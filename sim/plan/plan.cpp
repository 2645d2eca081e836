#include "sim/plan/plan.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "sim/units/shown.h"

namespace orrery {
namespace {

std::string quoted(std::string_view name) { return "\"" + shown(name) + "\""; }

// `count` things exist so far; `id` must be one of them.
void check_id(std::int64_t id, std::size_t count, std::string_view what, std::string_view user) {
  if (id >= 0 && static_cast<std::size_t>(id) < count) return;
  throw std::invalid_argument(
      quoted(user) + " refers to " + std::string(what) + " " + std::to_string(id) + ", expected " +
      (count == 0 ? "one that was added before, but there is none yet"
                  : "one of the " + std::to_string(count) + " added before it, 0 to " +
                        std::to_string(count - 1)));
}

std::string with_stage(const std::string& name, int stage, int micro_batch) {
  std::string text;
  if (stage >= 0) text.append("s").append(std::to_string(stage)).append(".");
  if (micro_batch >= 0) text.append("m").append(std::to_string(micro_batch)).append(".");
  return text.append(name);
}

std::string run_text(const Repeat& repeat) {
  return "[" + std::to_string(repeat.first) + ", " + std::to_string(repeat.last) + ")";
}

}  // namespace

std::int64_t num_elements(const Tensor& tensor) {
  std::int64_t product = 1;
  for (const Axis& axis : tensor.axes) {
    if (__builtin_mul_overflow(product, axis.size, &product)) {
      throw std::invalid_argument("tensor " + quoted(tensor.name) +
                                  " has 2^63 elements or more, expected fewer");
    }
  }
  return product;
}

Bytes bytes_of(const Tensor& tensor) {
  return Bytes(bytes_per_element(tensor.dtype) * static_cast<double>(num_elements(tensor)));
}

Tensor tensor_of_rows(const Tensor& tensor, const TensorView& view) {
  Tensor rows = tensor;
  Axis& axis = rows.axes.front();
  axis = {.name = axis.name, .size = view.num_rows};
  return rows;
}

std::string printed_name(const Op& op) { return with_stage(op.name, op.stage, op.micro_batch); }
std::string printed_name(const Tensor& tensor) {
  return with_stage(tensor.name, tensor.stage, tensor.micro_batch);
}

std::int64_t dim(const Dims& dims, std::string_view name) {
  for (const Dim& entry : dims) {
    if (entry.name == name) return entry.size;
  }
  std::string message = "no dim " + quoted(name) + ", found";
  for (const Dim& entry : dims) message.append(" ").append(entry.name);
  if (dims.empty()) message.append(" none");
  throw std::invalid_argument(message);
}

void Plan::reserve(std::size_t num_ops, std::size_t num_tensors) {
  ops_.reserve(num_ops);
  tensors_.reserve(num_tensors);
}

GroupId Plan::add_group(std::vector<int> ranks) {
  if (ranks.empty()) throw std::invalid_argument("a group has no ranks, expected at least one");
  std::ranges::sort(ranks);
  if (ranks.front() < 0) {
    throw std::invalid_argument("a group has rank " + std::to_string(ranks.front()) +
                                ", expected ranks from 0");
  }
  const auto twice = std::ranges::adjacent_find(ranks);
  if (twice != ranks.end()) {
    throw std::invalid_argument("a group has rank " + std::to_string(*twice) +
                                " twice, expected distinct ranks");
  }
  const auto [entry, is_new] = group_ids_.try_emplace(ranks, num_groups());
  if (is_new) {
    num_ranks_ = std::max(num_ranks_, ranks.back() + 1);
    groups_.push_back(std::move(ranks));
  }
  return entry->second;
}

SplitId Plan::add_split(const Split& split) {
  const auto found = std::ranges::find(splits_, split);
  if (found != splits_.end()) return static_cast<SplitId>(found - splits_.begin());
  check_split(split);
  splits_.push_back(split);
  return static_cast<SplitId>(splits_.size() - 1);
}

TensorId Plan::add_tensor(Tensor tensor) {
  check_id(tensor.ranks, groups_.size(), "group", tensor.name);
  for (const Axis& axis : tensor.axes) {
    if (axis.split >= 0) check_id(axis.split, splits_.size(), "split", tensor.name);
  }
  tensors_.push_back(std::move(tensor));
  return static_cast<TensorId>(tensors_.size() - 1);
}

OpId Plan::add_op(Op op) {
  check_id(op.ranks, groups_.size(), "group", op.name);
  for (const TensorId id : op.reads) check_id(id, tensors_.size(), "tensor", op.name);
  for (const TensorId id : op.writes) check_id(id, tensors_.size(), "tensor", op.name);
  for (const OpId id : op.after) check_id(id, ops_.size(), "op", op.name);
  if (op.stream < 0) {
    throw std::invalid_argument(quoted(op.name) + " is on stream " + std::to_string(op.stream) +
                                ", expected a stream from 0");
  }
  ops_.push_back(std::move(op));
  return static_cast<OpId>(ops_.size() - 1);
}

void Plan::add_repeat(Repeat repeat) {
  if (repeat.first < 0 || repeat.first >= repeat.last ||
      static_cast<std::size_t>(repeat.last) > ops_.size()) {
    throw std::invalid_argument("repeat of ops " + run_text(repeat) +
                                ", expected 0 <= first < last <= " + std::to_string(ops_.size()) +
                                ", the number of ops so far");
  }
  if (repeat.count < 1) {
    throw std::invalid_argument("repeat of ops " + run_text(repeat) + " has count " +
                                std::to_string(repeat.count) + ", expected at least 1");
  }
  const auto next = std::ranges::upper_bound(repeats_, repeat.first, {}, &Repeat::first);
  const Repeat* overlapped = nullptr;
  if (next != repeats_.end() && next->first < repeat.last) overlapped = &*next;
  if (next != repeats_.begin() && std::prev(next)->last > repeat.first) {
    overlapped = &*std::prev(next);
  }
  if (overlapped != nullptr) {
    throw std::invalid_argument("repeat of ops " + run_text(repeat) + " overlaps the run " +
                                run_text(*overlapped) + ", expected runs apart from each other");
  }
  repeats_.insert(next, repeat);
}

std::span<const int> Plan::ranks(GroupId group) const {
  check_id(group, groups_.size(), "group", "ranks()");
  return groups_[static_cast<std::size_t>(group)];
}

bool Plan::contains(GroupId group, int rank) const {
  return std::ranges::binary_search(ranks(group), rank);
}

std::int64_t Plan::whole_size(const Axis& axis) const {
  const Split* const split = split_of(axis);
  return split == nullptr ? axis.size : orrery::whole_size(*split);
}

std::vector<AxisRange> Plan::ranges_of(const Axis& axis, int rank, int micro_batch) const {
  if (axis.split == kUnknownSplit) {
    throw std::invalid_argument(
        "axis " + axis.name +
        " does not say which part of the whole a rank has: plans of several "
        "ranks in the first text form do not, and it does not follow from "
        "sizes; expected the second form, which orrery validate writes");
  }
  const Split* const split = split_of(axis);
  if (split == nullptr) return {{.local = 0, .global = 0, .count = axis.size}};
  return orrery::ranges_of(*split, rank, micro_batch);
}

std::int64_t Plan::multiplicity(OpId id) const {
  check_id(id, ops_.size(), "op", "multiplicity()");
  const auto next = std::ranges::upper_bound(repeats_, id, {}, &Repeat::first);
  if (next == repeats_.begin() || std::prev(next)->last <= id) return 1;
  return std::prev(next)->count;
}

}  // namespace orrery
