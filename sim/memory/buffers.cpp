#include "sim/memory/buffers.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <variant>

#include "kernels/kernel_spec.h"
#include "sim/plan/liveness.h"

namespace orrery {
namespace {

constexpr std::int64_t kAlignment = 256;

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t buffer_bytes(const Tensor& tensor) {
  return static_cast<std::int64_t>(std::ceil(bytes_of(tensor).value()));
}

std::int64_t scale_bytes(const Tensor& tensor) {
  if (tensor.axes.empty()) return sizeof(float);
  return num_elements(tensor) / tensor.axes.back().size * static_cast<std::int64_t>(sizeof(float));
}

// Which tensors follow which without gap.
class Joins {
 public:
  explicit Joins(std::size_t num_tensors) : next_(num_tensors, -1), previous_(num_tensors, -1) {}

  // Throws std::invalid_argument where an earlier op wants another neighbour.
  void add(const Op& op, const std::vector<TensorId>& parts) {
    for (std::size_t i = 1; i < parts.size(); ++i) {
      TensorId& next = next_[static_cast<std::size_t>(parts[i - 1])];
      TensorId& previous = previous_[static_cast<std::size_t>(parts[i])];
      if (next == parts[i]) continue;
      if (next >= 0 || previous >= 0 || first_of(parts[i - 1]) == parts[i]) {
        throw std::invalid_argument("op \"" + op.name +
                                    "\" reads parts of one input that an op before it reads in "
                                    "another order, expected the same order");
      }
      next = parts[i];
      previous = parts[i - 1];
    }
  }
  [[nodiscard]] TensorId first_of(TensorId id) const {
    while (!is_first(id)) id = previous_[static_cast<std::size_t>(id)];
    return id;
  }
  [[nodiscard]] TensorId next(TensorId id) const { return next_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] bool is_first(TensorId id) const {
    return previous_[static_cast<std::size_t>(id)] < 0;
  }

 private:
  std::vector<TensorId> next_;
  std::vector<TensorId> previous_;
};

// Memory that lies in one piece: a tensor, tensors joined, or the scales of these.
struct Piece {
  TensorId first = -1;
  bool holds_scales = false;
  std::int64_t bytes = 0;
  Lifetime alive_over;
  std::int64_t offset = -1;
};

class BufferPlanner {
 public:
  BufferPlanner(const Plan& plan, int rank)
      : plan_(plan),
        on_rank_(groups_with(plan, rank)),
        lifetimes_(lifetimes(plan, on_rank_)),
        is_gathered_(gathered_weights(plan)),
        joins_(plan.tensors().size()) {
    result_.offsets.assign(plan.tensors().size(), -1);
    result_.scales.assign(plan.tensors().size(), -1);
  }

  BufferPlan run() {
    keep_side_streams_apart();
    for (const Op& op : plan_.ops()) {
      join_inputs(op);
      keep_read_back(op);
    }
    for (std::size_t i = 0; i < plan_.tensors().size(); ++i) {
      const auto id = static_cast<TensorId>(i);
      if (!is_placed(id) || !joins_.is_first(id)) continue;
      add_piece(id, /*holds_scales=*/false);
      add_piece(id, /*holds_scales=*/true);
    }
    place();
    for (const Piece& piece : pieces_) write_offsets(piece);
    return std::move(result_);
  }

 private:
  [[nodiscard]] const Tensor& tensor(TensorId id) const {
    return plan_.tensors()[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] bool is_placed(TensorId id) const {
    const TensorRole role = tensor(id).role;
    const bool is_kept = role == TensorRole::kWeight && !is_gathered_[static_cast<std::size_t>(id)];
    return !is_kept && !is_cache(role) &&
           on_rank_[static_cast<std::size_t>(tensor(id).ranks)] != 0 &&
           !lifetimes_[static_cast<std::size_t>(id)].is_empty();
  }

  [[nodiscard]] const Op& op(OpId id) const { return plan_.ops()[static_cast<std::size_t>(id)]; }
  [[nodiscard]] bool is_here(OpId id) const {
    return on_rank_[static_cast<std::size_t>(op(id).ranks)] != 0;
  }
  static bool intersect(const TensorViews& a, const TensorViews& b) {
    return std::ranges::find_first_of(a, b, {}, &TensorView::tensor, &TensorView::tensor) !=
           a.end();
  }
  // Whether `later` waits for `earlier` whatever memory they use.
  [[nodiscard]] bool depends(OpId later, OpId earlier) const {
    const Op& a = op(earlier);
    const Op& b = op(later);
    return intersect(a.writes, b.reads) || intersect(a.writes, b.writes) ||
           intersect(a.reads, b.writes) || std::ranges::find(b.after, earlier) != b.after.end();
  }

  // Kernels and collectives. What is sent on to another stage is not: nothing comes after it but
  // the next micro-batch, whose activations would take as much memory again.
  static bool runs_beside(const Op& op) {
    const auto* comm = std::get_if<CommOp>(&op.body);
    return comm != nullptr ? comm->kind != CollectiveKind::kSendRecv
                           : std::holds_alternative<KernelOp>(op.body);
  }

  // Ops of a stream other than 0 run beside those of other streams, from when all that they wait
  // for has ended until somebody waits for them: what they use lives as long, or the memory
  // would make one stream wait for the other.
  void keep_side_streams_apart() {
    const auto num_ops = static_cast<OpId>(plan_.ops().size());
    std::map<int, OpId> ends;  // by stream, of what comes later on it
    for (OpId id = num_ops - 1; id >= 0; --id) {
      const int stream = op(id).stream;
      if (stream == 0 || !is_here(id) || !runs_beside(op(id))) continue;
      const auto is_elsewhere = [&](OpId other) {
        return op(other).stream != stream && is_here(other);
      };
      OpId start = id;
      while (start > 0 && !(is_elsewhere(start - 1) && depends(id, start - 1))) --start;
      const auto later = ends.find(stream);
      OpId end = later == ends.end() ? num_ops - 1 : later->second;
      for (OpId other = id + 1; other < end; ++other) {
        if (is_elsewhere(other) && depends(other, id)) end = other;
      }
      ends[stream] = end;
      for (const auto* tensors : {&op(id).reads, &op(id).writes}) {
        for (const TensorId tensor : *tensors) {
          lifetimes_[static_cast<std::size_t>(tensor)].extend(start, end);
        }
      }
    }
  }

  void join_inputs(const Op& op) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr || on_rank_[static_cast<std::size_t>(op.ranks)] == 0) return;
    const auto& slots = kernel_spec(kernel->kernel).slots;
    if (std::ranges::none_of(slots, &Slot::is_in_parts)) return;
    std::vector<TensorId> parts;
    // Gathered weights, which both halves of a step may read, are no part of the rows.
    std::ranges::copy_if(op.reads, std::back_inserter(parts), [&](TensorId id) {
      return is_placed(id) && tensor(id).role != TensorRole::kWeight;
    });
    joins_.add(op, parts);
  }

  void keep_read_back(const Op& op) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr || !kernel_spec(kernel->kernel).keeps_inputs) return;
    const auto last = static_cast<OpId>(plan_.ops().size()) - 1;
    for (const TensorId id : op.reads) {
      if (is_placed(id)) lifetimes_[static_cast<std::size_t>(id)].extend(last, last);
    }
  }

  // Bytes of one tensor in a piece: 0 where it has no scales.
  [[nodiscard]] std::int64_t bytes_in(TensorId id, bool holds_scales) const {
    if (!holds_scales) return buffer_bytes(tensor(id));
    return tensor(id).dtype == DType::kFp8 ? scale_bytes(tensor(id)) : 0;
  }

  void add_piece(TensorId first, bool holds_scales) {
    Piece piece{.first = first, .holds_scales = holds_scales};
    for (TensorId id = first; id >= 0; id = joins_.next(id)) {
      const Lifetime& lifetime = lifetimes_[static_cast<std::size_t>(id)];
      piece.bytes += bytes_in(id, holds_scales);
      piece.alive_over.extend(lifetime.first, lifetime.last);
    }
    if (piece.bytes > 0) pieces_.push_back(piece);
  }

  // Largest first, each where it fits lowest beside those placed before that live when it does.
  void place() {
    std::vector<std::size_t> order(pieces_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(
        order, [&](std::size_t a, std::size_t b) { return pieces_[a].bytes > pieces_[b].bytes; });
    std::vector<const Piece*> placed;  // by offset
    for (const std::size_t i : order) {
      Piece& piece = pieces_[i];
      piece.offset = 0;
      for (const Piece* other : placed) {
        if (other->alive_over.last < piece.alive_over.first ||
            piece.alive_over.last < other->alive_over.first) {
          continue;
        }
        if (other->offset >= piece.offset + piece.bytes) break;
        piece.offset = std::max(piece.offset, aligned(other->offset + other->bytes));
      }
      placed.insert(std::ranges::upper_bound(placed, piece.offset, {}, &Piece::offset), &piece);
      result_.arena_bytes = std::max(result_.arena_bytes, aligned(piece.offset + piece.bytes));
    }
  }

  void write_offsets(const Piece& piece) {
    std::vector<std::int64_t>& offsets = piece.holds_scales ? result_.scales : result_.offsets;
    std::int64_t offset = piece.offset;
    for (TensorId id = piece.first; id >= 0; id = joins_.next(id)) {
      const std::int64_t bytes = bytes_in(id, piece.holds_scales);
      if (bytes > 0) offsets[static_cast<std::size_t>(id)] = offset;
      offset += bytes;
    }
  }

  const Plan& plan_;
  std::vector<char> on_rank_;
  std::vector<Lifetime> lifetimes_;
  std::vector<bool> is_gathered_;  // of weights, which then live no longer than what is computed
  Joins joins_;
  std::vector<Piece> pieces_;
  BufferPlan result_;
};

}  // namespace

BufferPlan plan_buffers(const Plan& plan, int rank) { return BufferPlanner(plan, rank).run(); }

}  // namespace orrery
