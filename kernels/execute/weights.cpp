#include "kernels/execute/weights.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <utility>

#include "kernels/execute/rank_program.h"
#include "kernels/execute/weight_value.h"
#include "kernels/harness/rounding.h"
#include "kernels/kernel_spec.h"
#include "sim/plan/liveness.h"

namespace orrery {
namespace {

constexpr double kGainBound = 0.1;
// Of the embedding of a mixture of experts: tokens stay apart in the residual, where those of a
// prompt grow alike under random weights otherwise, and choose alike. With sqrt(3), prompts chose
// ever fewer experts from the eighth of 48 layers on, and twice as unevenly as by chance behind 3.
double routed_embedding_bound(std::int64_t layers) {
  constexpr double kLayersApart = 4;
  constexpr double kLeast = 4;
  return std::sqrt(3.0) * std::max(kLeast, static_cast<double>(layers) / kLayersApart);
}
// Of a bias that is added to scores between 0 and 1 to choose experts: a few choices change. With
// 0.1, 64 tokens would choose 167 of 256 experts rather than 222; trained biases even choices out.
constexpr double kCorrectionBound = 0.005;

// Whether its weight is a table of rows by what the host knows of the step, the token ids.
bool looks_up_tokens(const KernelSpec& spec) {
  const auto has = [&](Use use) {
    return std::ranges::find(spec.slots, use, &Slot::use) != spec.slots.end();
  };
  return has(Use::kInput) && has(Use::kWeight);
}

// What the ops of a plan say of its weights.
class WeightUses {
 public:
  explicit WeightUses(const Plan& plan, int rank) : plan_(plan), rank_(rank) {
    for (const Op& op : plan.ops()) {
      const auto* kernel = std::get_if<KernelOp>(&op.body);
      if (kernel == nullptr) continue;
      const KernelSpec& spec = kernel_spec(kernel->kernel);
      if (spec.is_on_residual) add(op.reads, gains_);
      if (spec.prior.arithmetic == Arithmetic::kGemm) read_bias(op);
      if (looks_up_tokens(spec)) add(op.reads, embeddings_);
      if (spec.routed == RoutedRole::kSort) add(op.reads, corrections_);
      if (spec.routed == RoutedRole::kLayer) add_correction(op);
      routes_ |= spec.routed == RoutedRole::kSort || spec.routed == RoutedRole::kLayer;
    }
  }

  [[nodiscard]] bool is_gain(TensorId id) const { return gains_.contains(id); }
  // The embedding of a mixture of experts.
  [[nodiscard]] bool is_routed_embedding(TensorId id) const {
    return routes_ && embeddings_.contains(id);
  }
  // Moves the choice of experts.
  [[nodiscard]] bool is_correction(TensorId id) const { return corrections_.contains(id); }
  // A bias that is added to a sum over ranks, which another rank of them has.
  [[nodiscard]] bool is_elsewhere(TensorId id) const { return elsewhere_.contains(id); }

 private:
  [[nodiscard]] const Tensor& tensor(TensorId id) const {
    return plan_.tensors()[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] bool is_weight(TensorId id) const { return tensor(id).role == TensorRole::kWeight; }
  void add(const TensorViews& views, std::set<TensorId>& set) const {
    for (const TensorView& view : views) {
      if (is_weight(view)) set.insert(view);
    }
  }
  // Of a layer that chooses by itself: what has a value for each expert.
  void add_correction(const Op& op) {
    for (const TensorView& view : op.reads) {
      if (is_weight(view) && tensor(view).axes.size() == 1) corrections_.insert(view);
    }
  }
  // Where the columns of its weight, over which a gemm sums, are split, the first place alone adds
  // the bias.
  void read_bias(const Op& op) {
    bool is_first = true;
    for (const TensorId id : op.reads) {
      if (!is_weight(id) || tensor(id).axes.size() < 2) continue;
      const Split* const split = plan_.split_of(tensor(id).axes.back());
      is_first = split == nullptr || split->parts.front().place.of(rank_, 0) == 0;
    }
    if (is_first) return;
    for (const TensorId id : op.reads) {
      if (is_weight(id) && tensor(id).axes.size() == 1) elsewhere_.insert(id);
    }
  }

  const Plan& plan_;
  int rank_;
  std::set<TensorId> gains_;
  std::set<TensorId> elsewhere_;
  std::set<TensorId> corrections_;
  std::set<TensorId> embeddings_;
  bool routes_ = false;
};

// Layers of the longest run of equal ones, over all stages.
std::int64_t longest_run(const Plan& plan, const std::vector<std::int64_t>& copies) {
  std::int64_t layers = 1;
  for (std::size_t i = 0; i < copies.size(); ++i) {
    layers = std::max(layers, plan.tensors()[i].first_copy + copies[i]);
  }
  return layers;
}

// Ranges of two axes that are one, the second faster. Those of experts, whose rows are whole, stay
// one range.
std::vector<AxisRange> joined(const std::vector<AxisRange>& outer,
                              const std::vector<AxisRange>& inner, std::int64_t size,
                              std::int64_t whole_size) {
  std::vector<AxisRange> ranges;
  for (const AxisRange& slow : outer) {
    if (inner.size() == 1 && inner.front().count == whole_size && size == whole_size) {
      ranges.push_back(
          {.local = slow.local * size, .global = slow.global * size, .count = slow.count * size});
      continue;
    }
    for (std::int64_t i = 0; i < slow.count; ++i) {
      for (const AxisRange& fast : inner) {
        ranges.push_back({.local = (slow.local + i) * size + fast.local,
                          .global = (slow.global + i) * whole_size + fast.global,
                          .count = fast.count});
      }
    }
  }
  return ranges;
}

// Throws std::invalid_argument where the slots of experts are not those that `expert_of_slot` is
// of, or there are more than experts and it says nothing.
void require_slots(const Plan& plan, const Axis& experts,
                   std::span<const std::int32_t> expert_of_slot) {
  const std::int64_t slots = plan.whole_size(experts);
  if (!expert_of_slot.empty() && std::ssize(expert_of_slot) != slots) {
    throw std::invalid_argument(std::to_string(slots) + " slots of experts, of which " +
                                std::to_string(expert_of_slot.size()) + " are said to hold one");
  }
  if (!expert_of_slot.empty()) return;
  for (const Tensor& tensor : plan.tensors()) {
    for (const Axis& axis : tensor.axes) {
      if (axis.name != "router" || axis.size == slots) continue;
      throw std::invalid_argument(
          std::to_string(slots) + " slots of experts, of which the router knows " +
          std::to_string(axis.size) + "; expected to be told which expert each slot holds");
    }
  }
}

// Slots as what they hold.
std::vector<AxisRange> experts_in(const std::vector<AxisRange>& slots,
                                  std::span<const std::int32_t> expert_of_slot) {
  if (expert_of_slot.empty()) return slots;
  std::vector<AxisRange> experts;
  for (const AxisRange& range : slots) {
    for (std::int64_t i = 0; i < range.count; ++i) {
      experts.push_back({.local = range.local + i,
                         .global = expert_of_slot[static_cast<std::size_t>(range.global + i)],
                         .count = 1});
    }
  }
  return experts;
}

// Sizes and ranges. A vector is one row.
void set_ranges(const Plan& plan, const Tensor& tensor, int rank,
                std::span<const std::int32_t> expert_of_slot, WeightShard& shard) {
  const Axis& columns = tensor.axes.back();
  shard.columns = columns.size;
  shard.whole_columns = plan.whole_size(columns);
  shard.column_ranges = plan.ranges_of(columns, rank);
  shard.rows = shard.whole_rows = 1;
  shard.row_ranges = {{.local = 0, .global = 0, .count = 1}};
  for (std::size_t i = 0; i + 1 < tensor.axes.size(); ++i) {
    const Axis& axis = tensor.axes[i];
    std::vector<AxisRange> ranges = plan.ranges_of(axis, rank);
    if (axis.name == axis::kExperts) {
      require_slots(plan, axis, expert_of_slot);
      ranges = experts_in(ranges, expert_of_slot);
    }
    shard.row_ranges = joined(shard.row_ranges, ranges, axis.size, plan.whole_size(axis));
    shard.rows *= axis.size;
    shard.whole_rows *= plan.whole_size(axis);
  }
}

double bound_of(const WeightUses& uses, TensorId id, std::int64_t layers,
                const WeightShard& shard) {
  if (shard.is_gain) return kGainBound;
  if (uses.is_correction(id)) return kCorrectionBound;
  if (uses.is_routed_embedding(id)) return routed_embedding_bound(layers);
  return std::sqrt(3.0 / static_cast<double>(shard.whole_columns));
}

}  // namespace

std::int64_t first_expert(const Plan& plan, int rank) {
  for (const Tensor& tensor : plan.tensors()) {
    const bool is_here = tensor.role == TensorRole::kWeight && plan.contains(tensor.ranks, rank);
    if (!is_here || tensor.axes.empty() || tensor.axes.front().name != axis::kExperts) continue;
    return first_on(plan, tensor.axes.front(), rank);
  }
  return 0;
}

WeightShards weight_shards(const Plan& plan, int rank,
                           std::span<const std::int32_t> expert_of_slot) {
  if (rank < 0 || rank >= plan.num_ranks()) {
    throw std::invalid_argument("rank " + std::to_string(rank) + " of a plan of " +
                                std::to_string(plan.num_ranks()) + " ranks");
  }
  const WeightUses uses(plan, rank);
  const std::vector<std::int64_t> copies = num_copies(plan);
  const std::int64_t layers = longest_run(plan, copies);
  const std::vector<bool> is_gathered = gathered_weights(plan);
  WeightShards result;
  result.tensor_shard.assign(plan.tensors().size(), -1);
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    const Tensor& tensor = plan.tensors()[i];
    const bool is_kept = tensor.role == TensorRole::kWeight && !is_gathered[i];
    if (!is_kept || !plan.contains(tensor.ranks, rank)) continue;
    WeightShard shard{.name = tensor.name,
                      .first_copy = tensor.first_copy,
                      .num_copies = copies[i],
                      .is_gain = uses.is_gain(id)};
    try {
      if (tensor.axes.empty()) throw std::invalid_argument("no axes, expected one or more");
      set_ranges(plan, tensor, rank, expert_of_slot, shard);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument("weight \"" + tensor.name + "\": " + error.what());
    }
    if (uses.is_elsewhere(id)) shard.column_ranges.clear();
    shard.bound = bound_of(uses, id, layers, shard);
    result.tensor_shard[i] = static_cast<std::int32_t>(result.shards.size());
    result.shards.push_back(std::move(shard));
  }
  return result;
}

std::map<std::string, KeptWeight> kept_weights(const Plan& plan, int rank,
                                               std::span<const std::int32_t> expert_of_slot) {
  const WeightShards shards = weight_shards(plan, rank, expert_of_slot);
  std::map<std::string, std::map<std::int64_t, KeptWeight>> by_copy;
  for (std::size_t i = 0; i < shards.tensor_shard.size(); ++i) {
    if (shards.tensor_shard[i] < 0) continue;
    const WeightShard& shard = shards.shards[static_cast<std::size_t>(shards.tensor_shard[i])];
    KeptWeight& part =
        by_copy[shard.name]
            .try_emplace(shard.first_copy, KeptWeight{shard, plan.tensors()[i].dtype})
            .first->second;
    part.shard.num_copies = std::max(part.shard.num_copies, shard.num_copies);
  }
  std::map<std::string, KeptWeight> kept;
  for (auto& [name, parts] : by_copy) {
    KeptWeight& all = kept.emplace(name, parts.begin()->second).first->second;
    for (const auto& [first, part] : parts) {
      const std::int64_t end = all.shard.first_copy + all.shard.num_copies;
      WeightShard same = part.shard;
      same.first_copy = all.shard.first_copy;
      same.num_copies = all.shard.num_copies;
      if (first > end || same != all.shard || part.dtype != all.dtype) {
        throw std::invalid_argument("weight \"" + name +
                                    "\" is in several tensors that are no copies of one");
      }
      all.shard.num_copies += std::max<std::int64_t>(first + part.shard.num_copies - end, 0);
    }
  }
  return kept;
}

std::int64_t kept_copy(const KeptWeight& kept, const Tensor& tensor, std::int64_t copies,
                       std::int64_t copy) {
  const WeightShard& shard = kept.shard;
  const std::int64_t first = tensor.first_copy - shard.first_copy;
  const bool is_same = num_elements(tensor) == shard.rows * shard.columns &&
                       tensor.dtype == kept.dtype && first >= 0 &&
                       first + copies <= shard.num_copies;
  if (is_same) return first + (copies > 1 ? copy : 0);
  const auto text = [](std::int64_t from, std::int64_t count, std::int64_t elements, DType dtype) {
    return std::to_string(count) + " from " + std::to_string(from) + " on x " +
           std::to_string(elements) + " " + std::string(to_text(dtype));
  };
  throw std::invalid_argument(
      "weight \"" + tensor.name + "\" is " +
      text(tensor.first_copy, copies, num_elements(tensor), tensor.dtype) +
      ", in the plan that the executor was made for " +
      text(shard.first_copy, shard.num_copies, shard.rows * shard.columns, kept.dtype));
}

void require_stored_dtype(const WeightShard& shard, DType dtype) {
  if (dtype == DType::kBf16 || dtype == DType::kFp8 || dtype == DType::kFp32) return;
  throw std::invalid_argument("weight \"" + shard.name + "\" is " + std::string(to_text(dtype)) +
                              ", expected bf16, fp8 or fp32");
}

StoredWeight stored_weight(const WeightShard& shard, std::int64_t copy, DType dtype,
                           std::uint64_t seed) {
  require_stored_dtype(shard, dtype);
  StoredWeight stored;
  stored.values.assign(static_cast<std::size_t>(shard.rows * shard.columns), 0.0F);
  const std::uint64_t key = weight_key(seed, weight_name_hash(shard.name), shard.first_copy + copy);
  const auto bound = static_cast<float>(shard.bound);
  const auto stored_value = [&](float noise) {
    if (dtype == DType::kFp8) return static_cast<float>(round_fp8(kFp8WeightRange * noise));
    if (dtype == DType::kFp32) return weight_value(noise, bound, shard.is_gain);
    return static_cast<float>(round_bf16(weight_value(noise, bound, shard.is_gain)));
  };
  for (const AxisRange& rows : shard.row_ranges) {
    for (const AxisRange& columns : shard.column_ranges) {
      for (std::int64_t row = 0; row < rows.count; ++row) {
        float* const out =
            stored.values.data() + (rows.local + row) * shard.columns + columns.local;
        for (std::int64_t column = 0; column < columns.count; ++column) {
          out[column] = stored_value(weight_noise(key, rows.global + row, columns.global + column));
        }
      }
    }
  }
  if (dtype == DType::kFp8) {
    stored.scales.assign(static_cast<std::size_t>(shard.rows), bound / kFp8WeightRange);
  }
  return stored;
}

}  // namespace orrery
