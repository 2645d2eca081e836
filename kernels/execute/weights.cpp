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
      if (is_gemm(kernel->kernel)) weights_of[op.writes.front()] = op.reads;
      if (kernel->kernel == "gemm") read_bias(op, *kernel);
      if (kernel->kernel == "embedding") add(op.reads, embeddings_);
      if (kernel->kernel == "index_shuffling") {
        add(op.reads, corrections_);
        routes_ = true;
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
  // Of the longest run of equal ones.
  [[nodiscard]] std::int64_t layers() const {
    return copies_.empty() ? 1 : *std::ranges::max_element(copies_);
  }
  [[nodiscard]] bool is_gain(std::size_t id) const { return gains_.contains(id); }
  // The embedding of a mixture of experts.
  [[nodiscard]] bool is_routed_embedding(std::size_t id) const {
    return routes_ && embeddings_.contains(id);
  }
  // Moves the choice of experts.
  [[nodiscard]] bool is_correction(std::size_t id) const { return corrections_.contains(id); }
  // Its rows (of each expert) are gate and up, one behind the other.
  [[nodiscard]] bool has_halves(std::size_t id) const { return halves_.contains(id); }
  // Added to a sum over ranks where its op is split, so one of them alone has it.
  [[nodiscard]] bool is_summed_bias(std::size_t id) const { return summed_biases_.contains(id); }
  [[nodiscard]] std::int64_t heads() const { return heads_; }
  [[nodiscard]] std::int64_t kv_heads() const { return kv_heads_; }
  [[nodiscard]] std::int64_t head_dim() const { return head_dim_; }

 private:
  static bool is_gemm(std::string_view kernel) {
    return kernel == "gemm" || kernel == "grouped_gemm" || kernel == "batched_gemm" ||
           kernel == "expert_gemm";
  }
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
  std::set<std::size_t> corrections_;
  std::set<std::size_t> embeddings_;
  bool routes_ = false;
  std::int64_t heads_ = 0;
  std::int64_t kv_heads_ = 0;
  std::int64_t head_dim_ = 0;
};

// Parts of one axis, one behind the other, each split over `ways` by itself.
class Splitter {
 public:
  // Over tp.
  Splitter(const WholeWeights& whole, const RankGrid& grid, int rank)
      : Splitter(whole, grid.tp, grid.tp_rank(rank)) {}
  // This is share `index`.
  Splitter(const WholeWeights& whole, std::int64_t ways, std::int64_t index)
      : whole_(whole), tp_(ways), tp_rank_(index) {}

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
    } else if (is_ffn(axis.name) && axis_idx + 2 == num_axes(id) && whole_.has_halves(id)) {
      add_part(axis.size / 2, tp_, tp_rank_);
      add_part(axis.size / 2, tp_, tp_rank_);
    } else if (is_ffn(axis.name) || axis.name == axis::kHeads) {
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
  static bool is_ffn(std::string_view name) {
    return name == axis::kFfn || name == axis::kExpertFfn;
  }
  [[nodiscard]] std::size_t num_axes(std::size_t id) const { return whole_.tensor(id).axes.size(); }
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

// The share of `tensor`, a weight of experts, that `rank` has. Experts lie in blocks as ExpertGrid
// (sim/parallel/routed_layer.h) has them: with dp 1, or as many blocks as dp, in the order of the
// ranks, and neighbours in tp have slices of their columns where there are fewer blocks than ranks.
//
//   block of rank (d, t) = (t / slices) dp + d          slice t % slices
struct ExpertShare {
  std::int64_t first = 0;  // expert
  std::int64_t ways = 1;   // slices of columns
  std::int64_t index = 0;
};

std::int64_t size_of(const Tensor& tensor, std::string_view axis) {
  const auto found = std::ranges::find(tensor.axes, axis, &Axis::name);
  return found == tensor.axes.end() ? 1 : found->size;
}

ExpertShare expert_share(const Tensor& tensor, const Tensor& whole, const RankGrid& grid,
                         int rank) {
  const std::int64_t experts = size_of(tensor, axis::kExperts);
  const std::int64_t ep = size_of(whole, axis::kExperts) / experts;
  const std::int64_t ways = size_of(whole, axis::kExpertFfn) / size_of(tensor, axis::kExpertFfn);
  const std::int64_t stage_ranks = std::int64_t{grid.tp} * grid.dp;
  const bool divides = ep * experts == size_of(whole, axis::kExperts) &&
                       ways * size_of(tensor, axis::kExpertFfn) == size_of(whole, axis::kExpertFfn);
  const bool is_whole = ep * ways == 1;
  if (!divides || (!is_whole && (ep * ways != stage_ranks || grid.tp % ways != 0))) {
    throw std::invalid_argument(
        "weight \"" + tensor.name + "\" has " + std::to_string(experts) + " of " +
        std::to_string(size_of(whole, axis::kExperts)) + " experts and one of " +
        std::to_string(ways) + " slices of their columns, on one of " +
        std::to_string(stage_ranks) + " ranks; expected as many shares as ranks");
  }
  if (is_whole) return {};
  const std::int64_t block = grid.tp_rank(rank) / ways * grid.dp + grid.dp_rank(rank);
  return {.first = block * experts, .ways = ways, .index = grid.tp_rank(rank) % ways};
}

// Rows and columns of a weight of experts, whose rows are those of one expert behind the other.
void split_experts(const WholeWeights& whole, std::size_t id, const Tensor& tensor,
                   const ExpertShare& share, WeightShard& shard) {
  Splitter splitter(whole, share.ways, share.index);
  const std::size_t last = tensor.axes.size() - 1;
  shard.column_segments = splitter.split(id, last, shard.columns);
  const std::int64_t experts = tensor.axes.front().size;
  const std::int64_t rows = shard.rows / experts;
  const std::int64_t whole_rows = shard.whole_rows / whole.tensor(id).axes.front().size;
  if (rows == whole_rows) {
    shard.row_segments = {{.local = 0, .global = share.first * rows, .count = shard.rows}};
    return;
  }
  const std::vector<WeightSegment> one = splitter.split(id, 1, rows);
  for (std::int64_t expert = 0; expert < experts; ++expert) {
    for (WeightSegment segment : one) {
      segment.local += expert * rows;
      segment.global += (share.first + expert) * whole_rows;
      shard.row_segments.push_back(segment);
    }
  }
}

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

// A vector is one row.
std::vector<WeightSegment> row_segments(Splitter& splitter, std::size_t id, std::size_t num_axes,
                                        std::int64_t rows) {
  if (num_axes == 1) return {{.local = 0, .global = 0, .count = rows}};
  return splitter.split(id, 0, rows);
}

double bound_of(const WholeWeights& whole, std::size_t id, const WeightShard& shard) {
  if (shard.is_gain) return kGainBound;
  if (whole.is_correction(id)) return kCorrectionBound;
  if (whole.is_routed_embedding(id)) return routed_embedding_bound(whole.layers());
  return std::sqrt(3.0 / static_cast<double>(shard.whole_columns));
}

}  // namespace

std::int64_t first_expert(const Plan& plan, const Plan& whole, const RankGrid& grid, int rank) {
  for (const Tensor& tensor : plan.tensors()) {
    const bool is_here = tensor.role == TensorRole::kWeight && plan.contains(tensor.ranks, rank);
    if (!is_here || tensor.axes.empty() || tensor.axes.front().name != axis::kExperts) continue;
    const WholeWeights weights(whole);
    const std::size_t id = weights.find(whole_name(tensor.name, grid));
    return expert_share(tensor, weights.tensor(id), grid, rank).first;
  }
  return 0;
}

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
    if (axes.front().name == axis::kExperts) {
      split_experts(whole, id, tensor, expert_share(tensor, whole.tensor(id), grid, rank), shard);
    } else {
      shard.column_segments = splitter.split(id, axes.size() - 1, shard.columns);
      shard.row_segments = row_segments(splitter, id, axes.size(), shard.rows);
    }
    shard.bound = bound_of(whole, id, shard);
    result.shards.push_back(std::move(shard));
  }
  return result;
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
