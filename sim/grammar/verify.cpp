// The rules of a plan that need kernel specs or the whole plan.

#include <algorithm>
#include <cmath>
#include <span>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "kernels/kernel_spec.h"
#include "sim/grammar/shards.h"
#include "sim/plan/liveness.h"
#include "sim/plan/plan.h"

namespace orrery {
namespace {

constexpr std::size_t kShown = 8;

// The first kShown ranks of a set for a message.
std::string some(std::span<const int> ranks) {
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kShown); ++i) {
    text.append(i == 0 ? "" : ",").append(std::to_string(ranks[i]));
  }
  return ranks.size() > kShown ? text + ",... (" + std::to_string(ranks.size()) + ")" : text;
}

bool intersect(std::span<const int> a, std::span<const int> b) {
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i] == b[j]) return true;
    a[i] < b[j] ? ++i : ++j;
  }
  return false;
}

class Verifier {
 public:
  explicit Verifier(const Plan& plan)
      : plan_(plan), is_gathered_(gathered_weights(plan)), written_on_(plan.tensors().size()) {}

  void run() {
    for (std::size_t i = 0; i < plan_.tensors().size(); ++i) check_tensor(i);
    for (op_ = 0; op_ < plan_.ops().size(); ++op_) check_op(plan_.ops()[op_]);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::invalid_argument("op " + std::to_string(op_) + " \"" +
                                printed_name(plan_.ops()[op_]) + "\": " + what);
  }

  void check_tensor(std::size_t i) const {
    const Tensor& tensor = plan_.tensors()[i];
    for (const Axis& axis : tensor.axes) {
      // The cache of a prompt that starts has no tokens yet.
      const std::int64_t least = is_cache(tensor.role) ? 0 : 1;
      if (axis.size >= least) continue;
      fail(i, "axis " + axis.name + " has size " + std::to_string(axis.size) +
                  ", expected at least " + std::to_string(least));
    }
    try {
      check_shards(plan_, tensor);
    } catch (const std::invalid_argument& error) {
      fail(i, error.what());
    }
  }
  [[noreturn]] void fail(std::size_t tensor, const std::string& what) const {
    throw std::invalid_argument("tensor " + std::to_string(tensor) + " \"" +
                                printed_name(plan_.tensors()[tensor]) + "\": " + what);
  }

  void check_op(const Op& op) {
    if (const auto* kernel = std::get_if<KernelOp>(&op.body)) {
      try {
        check_call(*kernel);
        static_cast<void>(operand_slots(plan_, op));
        check_alike(plan_, op);
      } catch (const std::invalid_argument& error) {
        fail(error.what());
      }
    }
    if (const auto* comm = std::get_if<CommOp>(&op.body)) check_comm(*comm, plan_.ranks(op.ranks));
    for (const TensorView& view : op.reads) {
      check_view(view);
      check_read(op, view);
    }
    for (const TensorView& view : op.writes) {
      check_view(view);
      check_write(op, view);
    }
  }

  void check_view(const TensorView& view) const {
    if (view.is_whole()) return;
    const Tensor& tensor = plan_.tensors()[static_cast<std::size_t>(view.tensor)];
    const auto size_of = [&](std::size_t i) {
      return tensor.axes.empty() ? 1 : tensor.axes[i].size;
    };
    if (!view.has_all_columns()) {
      check_range("columns", view, view.first_column, view.num_columns,
                  size_of(tensor.axes.size() - 1));
    }
    if (!view.has_all_rows()) {
      check_range("rows", view, view.first_row, view.num_rows, size_of(0));
    }
  }
  void check_range(std::string_view what, const TensorView& view, std::int64_t first,
                   std::int64_t count, std::int64_t size) const {
    if (first >= 0 && count > 0 && first + count <= size) return;
    const Tensor& tensor = plan_.tensors()[static_cast<std::size_t>(view.tensor)];
    fail("uses " + std::string(what) + " " + std::to_string(first) + " to " +
         std::to_string(first + count) + " of tensor " + std::to_string(view.tensor) + " \"" +
         tensor.name + "\", which has " + std::to_string(size));
  }

  void check_comm(const CommOp& comm, std::span<const int> ranks) const {
    const std::string kind(to_text(comm.kind));
    if (ranks.size() < 2) {
      fail(kind + " has the one rank " + some(ranks) + ", expected at least two");
    }
    if (comm.kind == CollectiveKind::kSendRecv && ranks.size() != 2) {
      fail(kind + " has " + std::to_string(ranks.size()) + " ranks, expected two");
    }
    if (comm.is_copied && comm.kind != CollectiveKind::kAllToAll) {
      fail(kind + " is copied, expected copies of an all_to_all alone");
    }
    const double bytes = comm.bytes_per_rank.value();
    if (!std::isfinite(bytes) || bytes <= 0) {
      fail(kind + " moves " + std::to_string(bytes) + " bytes per rank, expected more than none");
    }
  }

  // Where senders and receivers may differ, a tensor need not be on all ranks of the op.
  static bool has_sides(const Op& op) {
    const auto* comm = std::get_if<CommOp>(&op.body);
    return comm != nullptr &&
           (comm->kind == CollectiveKind::kSendRecv || comm->kind == CollectiveKind::kBroadcast ||
            comm->kind == CollectiveKind::kAllToAll);
  }

  void check_present(const Op& op, TensorId id, std::string_view does) const {
    const Tensor& tensor = plan_.tensors()[static_cast<std::size_t>(id)];
    if (tensor.ranks == op.ranks) return;
    const auto needed = plan_.ranks(op.ranks);
    const auto present = plan_.ranks(tensor.ranks);
    if (has_sides(op) ? intersect(needed, present) : std::ranges::includes(present, needed)) return;
    fail(std::string(does) + " tensor " + std::to_string(id) + " \"" + printed_name(tensor) +
         "\", which is on ranks " + some(present) + ", but the op runs on ranks " + some(needed) +
         ", expected " + (has_sides(op) ? "one of them" : "all of them") + " to have it");
  }

  void check_read(const Op& op, TensorId id) {
    check_present(op, id, "reads");
    const Tensor& tensor = plan_.tensors()[static_cast<std::size_t>(id)];
    const bool is_computed =
        tensor.role == TensorRole::kActivation || tensor.role == TensorRole::kOutput;
    if (!is_computed && !is_gathered_[static_cast<std::size_t>(id)]) return;
    const auto& writers = written_on_[static_cast<std::size_t>(id)];
    if (std::ranges::find(writers, op.ranks) != writers.end()) return;
    for (const int rank : plan_.ranks(op.ranks)) {
      if (!plan_.contains(tensor.ranks, rank)) continue;
      const auto writes_here = [&](GroupId group) { return plan_.contains(group, rank); };
      if (std::ranges::any_of(writers, writes_here)) continue;
      fail("reads " + std::string(to_text(tensor.role)) + " " + std::to_string(id) + " \"" +
           printed_name(tensor) + "\" on rank " + std::to_string(rank) +
           ", where no earlier op writes it; expected an op before that does, or role input");
    }
  }

  void check_write(const Op& op, TensorId id) {
    check_present(op, id, "writes");
    const Tensor& tensor = plan_.tensors()[static_cast<std::size_t>(id)];
    if (tensor.role == TensorRole::kWeight && !gathers_weights(op)) {
      fail("writes weight " + std::to_string(id) + " \"" + printed_name(tensor) +
           "\", expected weights to be read only");
    }
    auto& writers = written_on_[static_cast<std::size_t>(id)];
    if (std::ranges::find(writers, op.ranks) == writers.end()) writers.push_back(op.ranks);
  }

  // An all_gather of weights alone makes a weight of them.
  [[nodiscard]] bool gathers_weights(const Op& op) const {
    const auto* comm = std::get_if<CommOp>(&op.body);
    return comm != nullptr && comm->kind == CollectiveKind::kAllGather &&
           std::ranges::all_of(op.reads, [&](TensorId read) {
             return plan_.tensors()[static_cast<std::size_t>(read)].role == TensorRole::kWeight;
           });
  }

  const Plan& plan_;
  std::vector<bool> is_gathered_;  // by tensor: a weight that an op writes
  std::size_t op_ = 0;
  std::vector<std::vector<GroupId>> written_on_;  // by tensor: groups of the ops that wrote it
};

}  // namespace

void verify(const Plan& plan) { Verifier(plan).run(); }

}  // namespace orrery
