#include "kernels/execute/weights.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "kernels/execute/weight_value.h"
#include "kernels/harness/rounding.h"

namespace orrery {
namespace {

constexpr double kGainBound = 0.1;

// The name in the plan of one rank: without the stage and micro-batch that sim/parallel/pipeline
// puts before it.
std::string_view whole_name(std::string_view name, const RankGrid& grid) {
  if (grid.pp == 1) return name;
  for (const char letter : {'s', 'm'}) {
    if (name.empty() || name.front() != letter) continue;
    const auto end = name.find_first_not_of("0123456789", 1);
    if (end == std::string_view::npos || end == 1 || name[end] != '.') continue;
    name.remove_prefix(end + 1);
  }
  return name;
}

// What the ops of the whole plan say of its weights.
class WholeWeights {
 public:
  explicit WholeWeights(const Plan& plan) : plan_(plan), copies_(num_copies(plan)) {
    for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
      if (plan.tensors()[i].role == TensorRole::kWeight) ids_[plan.tensors()[i].name] = i;
    }
    std::map<TensorId, std::vector<TensorId>> weights_of;  // by what a gemm writes
    for (const Op& op : plan.ops()) {
      const auto* kernel = std::get_if<KernelOp>(&op.body);
      if (kernel == nullptr) continue;
      read_heads(*kernel);
      if (kernel->kernel == "rms_norm" || kernel->kernel == "add_rms_norm") add(op.reads, gains_);
      if (kernel->kernel == "gemm") {
        weights_of[op.writes.front()] = op.reads;
        read_bias(op, *kernel);
      }
      if (kernel->kernel == "silu_mul") add(weights_of[op.reads.front()], halves_);
    }
  }

  // Throws std::invalid_argument when there is none of that name.
  [[nodiscard]] std::size_t find(std::string_view name) const {
    const auto entry = ids_.find(std::string(name));
    if (entry != ids_.end()) return entry->second;
    throw std::invalid_argument("weight \"" + std::string(name) +
                                "\" is not in the plan of the whole model, expected the plan that "
                                "was split over ranks");
  }
  [[nodiscard]] const Tensor& tensor(std::size_t id) const { return plan_.tensors()[id]; }
  [[nodiscard]] std::int64_t copies(std::size_t id) const { return copies_[id]; }
  [[nodiscard]] bool is_gain(std::size_t id) const { return gains_.contains(id); }
  // Its rows are gate and up, one behind the other.
  [[nodiscard]] bool has_halves(std::size_t id) const { return halves_.contains(id); }
  // Added to a sum over ranks where its op is split, so one of them alone has it.
  [[nodiscard]] bool is_summed_bias(std::size_t id) const { return summed_biases_.contains(id); }
  [[nodiscard]] std::int64_t heads() const { return heads_; }
  [[nodiscard]] std::int64_t kv_heads() const { return kv_heads_; }
  [[nodiscard]] std::int64_t head_dim() const { return head_dim_; }

 private:
  void add(const std::vector<TensorId>& ids, std::set<std::size_t>& set) const {
    for (const TensorId id : ids) {
      const auto i = static_cast<std::size_t>(id);
      if (plan_.tensors()[i].role == TensorRole::kWeight) set.insert(i);
    }
  }
  void read_bias(const Op& op, const KernelOp& kernel) {
    const auto sum = std::ranges::find(kernel.dims, "k", &Dim::name);
    if (sum == kernel.dims.end() || sum->axis == axis::kHidden) return;
    std::vector<TensorId> biases;
    std::ranges::copy_if(op.reads, std::back_inserter(biases), [&](TensorId id) {
      return plan_.tensors()[static_cast<std::size_t>(id)].axes.size() == 1;
    });
    add(biases, summed_biases_);
  }
  void read_heads(const KernelOp& kernel) {
    for (const Dim& entry : kernel.dims) {
      if (entry.name == "kv_heads") kv_heads_ = entry.size;
      if (entry.name != "heads" || entry.axis != axis::kHeads) continue;
      heads_ = entry.size;
      const auto width = std::ranges::find(kernel.dims, "head_dim", &Dim::name);
      if (width != kernel.dims.end()) head_dim_ = width->size;
    }
  }

  const Plan& plan_;
  std::vector<std::int64_t> copies_;
  std::map<std::string, std::size_t> ids_;
  std::set<std::size_t> gains_;
  std::set<std::size_t> halves_;
  std::set<std::size_t> summed_biases_;
  std::int64_t heads_ = 0;
  std::int64_t kv_heads_ = 0;
  std::int64_t head_dim_ = 0;
};

// Parts of one axis, one behind the other, each split over tp by itself.
class Splitter {
 public:
  Splitter(const WholeWeights& whole, const RankGrid& grid, int rank)
      : whole_(whole), tp_(grid.tp), tp_rank_(grid.tp_rank(rank)) {}

  // Throws std::invalid_argument for a split that the axis does not have.
  std::vector<WeightSegment> split(std::size_t id, std::size_t axis_idx, std::int64_t local) {
    const Axis& axis = whole_.tensor(id).axes[axis_idx];
    segments_.clear();
    local_ = global_ = 0;
    if (whole_.is_summed_bias(id) && tp_rank_ > 0) {
      local_ = local;
    } else if (local == axis.size) {
      add_part(axis.size, 1, 0);
    } else if (axis.name == axis::kVocab) {
      const std::int64_t first = tp_rank_ * local;
      const std::int64_t count = std::min(local, axis.size - first);
      if (count > 0) segments_.push_back({.local = 0, .global = first, .count = count});
      local_ = (axis.size + tp_ - 1) / tp_;
    } else if (axis.name == axis::kFfn && axis_idx == 0 && whole_.has_halves(id)) {
      add_part(axis.size / 2, tp_, tp_rank_);
      add_part(axis.size / 2, tp_, tp_rank_);
    } else if (axis.name == axis::kFfn || axis.name == axis::kHeads) {
      add_part(axis.size, tp_, tp_rank_);
    } else if (axis.name == axis::kQkv && whole_.heads() > 0) {
      add_qkv(axis.size);
    }
    if (local_ == local) return segments_;
    throw std::invalid_argument("weight \"" + whole_.tensor(id).name + "\" has " +
                                std::to_string(local) + " of " + std::to_string(axis.size) + " " +
                                axis.name + " on a rank of tp " + std::to_string(tp_) +
                                ", a split that cannot be executed; expected heads, qkv, ffn or "
                                "vocab over tp");
  }

 private:
  // The next `size` of the whole: share `index` of `ways`.
  void add_part(std::int64_t size, std::int64_t ways, std::int64_t index) {
    const std::int64_t count = size / ways;
    segments_.push_back({.local = local_, .global = global_ + index * count, .count = count});
    local_ += count;
    global_ += size;
  }
  // Query heads, then key heads, then value heads. Where there are fewer key heads than ranks, each
  // rank has the one that its query heads read.
  void add_qkv(std::int64_t size) {
    const std::int64_t query = whole_.heads() * whole_.head_dim();
    const std::int64_t kv = (size - query) / 2;
    if (kv != whole_.kv_heads() * whole_.head_dim()) return;
    const std::int64_t ways = std::min<std::int64_t>(tp_, whole_.kv_heads());
    add_part(query, tp_, tp_rank_);
    for (int i = 0; i < 2; ++i) add_part(kv, ways, tp_rank_ * ways / tp_);
  }

  const WholeWeights& whole_;
  std::int64_t tp_;
  std::int64_t tp_rank_;
  std::vector<WeightSegment> segments_;
  std::int64_t local_ = 0;
  std::int64_t global_ = 0;
};

// How many copies of each weight the stages before `stage` hold, by its name in the whole plan.
std::map<std::string, std::int64_t> copies_before(const Plan& plan,
                                                  const std::vector<std::int64_t>& copies,
                                                  const RankGrid& grid, int stage) {
  std::map<std::pair<std::string, int>, std::int64_t> by_stage;  // micro-batches merged
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    const Tensor& tensor = plan.tensors()[i];
    if (tensor.role != TensorRole::kWeight) continue;
    const int holder = grid.stage(plan.ranks(tensor.ranks).front());
    if (holder < stage) by_stage[{std::string(whole_name(tensor.name, grid)), holder}] = copies[i];
  }
  std::map<std::string, std::int64_t> before;
  for (const auto& [key, count] : by_stage) before[key.first] += count;
  return before;
}

}  // namespace

WeightShards weight_shards(const Plan& plan, const Plan& whole_plan, const RankGrid& grid,
                           int rank) {
  if (plan.num_ranks() != grid.size() || whole_plan.num_ranks() != 1 || rank < 0 ||
      rank >= grid.size()) {
    throw std::invalid_argument(
        "rank " + std::to_string(rank) + " of a plan of " + std::to_string(plan.num_ranks()) +
        " ranks, split from one of " + std::to_string(whole_plan.num_ranks()) + ", on a grid of " +
        std::to_string(grid.size()) + "; expected a grid of the plan's ranks and a whole of one");
  }
  const WholeWeights whole(whole_plan);
  const std::vector<std::int64_t> copies = num_copies(plan);
  const auto before = copies_before(plan, copies, grid, grid.stage(rank));
  Splitter splitter(whole, grid, rank);
  WeightShards result;
  result.tensor_shard.assign(plan.tensors().size(), -1);
  std::map<std::string, std::int32_t> by_name;
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    const Tensor& tensor = plan.tensors()[i];
    if (tensor.role != TensorRole::kWeight || !plan.contains(tensor.ranks, rank)) continue;
    const std::string name(whole_name(tensor.name, grid));
    const auto [entry, is_new] =
        by_name.try_emplace(name, static_cast<std::int32_t>(result.shards.size()));
    result.tensor_shard[i] = entry->second;
    if (!is_new) continue;

    const std::size_t id = whole.find(name);
    const std::vector<Axis>& axes = whole.tensor(id).axes;
    const bool is_alike = std::ranges::equal(axes, tensor.axes, {}, &Axis::name, &Axis::name);
    if (!is_alike || axes.empty()) {
      throw std::invalid_argument("weight \"" + tensor.name + "\" has other axes than \"" + name +
                                  "\" of the whole model");
    }
    WeightShard shard{.name = name, .num_copies = copies[i], .is_gain = whole.is_gain(id)};
    if (whole.copies(id) > 1 && before.contains(name)) shard.first_copy = before.at(name);
    shard.columns = tensor.axes.back().size;
    shard.rows = num_elements(tensor) / shard.columns;
    shard.whole_columns = axes.back().size;
    shard.whole_rows = num_elements(whole.tensor(id)) / shard.whole_columns;
    shard.column_segments = splitter.split(id, axes.size() - 1, shard.columns);
    if (axes.size() == 2) {
      shard.row_segments = splitter.split(id, 0, shard.rows);
    } else if (shard.rows == shard.whole_rows) {
      shard.row_segments = {{.local = 0, .global = 0, .count = shard.rows}};
    } else {
      throw std::invalid_argument("weight \"" + tensor.name +
                                  "\" of experts is split over ranks, which cannot be executed; "
                                  "expected ep 1 and tp 1");
    }
    shard.bound =
        shard.is_gain ? kGainBound : std::sqrt(3.0 / static_cast<double>(shard.whole_columns));
    result.shards.push_back(std::move(shard));
  }
  return result;
}

StoredWeight stored_weight(const WeightShard& shard, std::int64_t copy, DType dtype,
                           std::uint64_t seed) {
  if (dtype != DType::kBf16 && dtype != DType::kFp8) {
    throw std::invalid_argument("weight \"" + shard.name + "\" is " + std::string(to_text(dtype)) +
                                ", expected bf16 or fp8");
  }
  StoredWeight stored;
  stored.values.assign(static_cast<std::size_t>(shard.rows * shard.columns), 0.0F);
  const std::uint64_t key = weight_key(seed, weight_name_hash(shard.name), shard.first_copy + copy);
  const auto bound = static_cast<float>(shard.bound);
  const auto stored_value = [&](float noise) {
    if (dtype == DType::kFp8) return static_cast<float>(round_fp8(kFp8WeightRange * noise));
    return static_cast<float>(round_bf16(weight_value(noise, bound, shard.is_gain)));
  };
  for (const WeightSegment& rows : shard.row_segments) {
    for (const WeightSegment& columns : shard.column_segments) {
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
