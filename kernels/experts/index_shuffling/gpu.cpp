#include <algorithm>
#include <bit>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>

#include "kernels/experts/index_shuffling/index_shuffling.h"
#include "kernels/experts/index_shuffling/reference.h"
#include "kernels/harness/operand_sets.h"

namespace orrery {
namespace {

// What the scores of a case are made of (variant "scores").
enum ScoreKind : std::int64_t {
  kNormal,      // all different
  kTied,        // small integers: most are equal to others, 0 and -0 among them
  kSkewed,      // all tokens choose the same experts
  kNotNumbers,  // every third NaN; every fifth token all NaN; infinities
  kExample      // experts [[1, 2], [0, 1], [1, 2]] of three tokens (InitRouting)
};

std::vector<float> made_scores(const IndexShufflingShape& shape, ScoreKind kind,
                               std::uint64_t seed) {
  if (kind == kExample) return {0, 2, 1, 2, 1, 0, 0, 2, 1};
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto experts = static_cast<std::size_t>(shape.experts_total);
  const auto count = static_cast<std::size_t>(shape.tokens) * experts;
  std::vector<double> normal =
      count == 0 ? std::vector<double>{} : host_normal<bf16>(count, seed, 1.0f);
  std::vector<float> scores(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t token = i / experts;
    const std::size_t expert = i % experts;
    auto value = static_cast<float>(normal[i]);
    if (kind == kTied) value = std::trunc(value);
    if (kind == kSkewed) value += static_cast<float>(8 * (expert * 7 % experts));
    if (kind == kNotNumbers) {
      if (token % 5 == 0 || (token + expert) % 3 == 0) value = kNan;
      if (expert % 11 == 4) value = token % 2 == 0 ? kInfinity : -kInfinity;
    }
    scores[i] = value;
  }
  return scores;
}

template <typename T>
class IndexShufflingCase final : public KernelCase {
 public:
  IndexShufflingCase(const KernelOp& op, const CaseOptions& options)
      : shape_(shape_of(op)),
        kind_(static_cast<ScoreKind>(variant(op.dims, "scores", kNormal))),
        tile_(tile_of(op, shape_)),
        bias_(static_cast<std::size_t>(shape_.experts_total), options.seed + 1, 1, 0.5f),
        has_bias_(variant(op.dims, "bias") != 0),
        expert_of_slot_(slots_of(shape_)),
        counts_(static_cast<std::size_t>(shape_.experts), options.sets),
        num_rows_(1, options.sets),
        row_token_(most_rows(), options.sets),
        row_weight_(most_rows(), options.sets),
        token_rows_(choices(), options.sets),
        workspace_(index_shuffling_workspace_bytes()) {
    for (int set = 0; set < options.sets; ++set) {
      host_.assign(0, T{});
      for (const float score :
           made_scores(shape_, kind_, options.seed + static_cast<std::uint64_t>(set))) {
        host_.push_back(static_cast<T>(score));
      }
      if (set == 0) made_ = host_;
      scores_.emplace_back(std::max<std::size_t>(host_.size(), 1));
      copy(host_, scores_.back());
    }
    ORRERY_CUDA(cudaMemset(workspace_.get(), 0, workspace_.size()));
    if (expert_of_slot_.empty()) return;
    const ExpertSlots slots = expert_slots(expert_of_slot_, shape_.experts_total);
    first_slots_ = device_copy<std::int32_t>(slots.first);
    slots_ = device_copy<std::int32_t>(slots.slots);
  }

  void launch(const cuda::Stream& stream, int set) override {
    index_shuffling(stream, scores_[static_cast<std::size_t>(set)].get(),
                    has_bias_ ? bias_[0] : nullptr,
                    {.first = first_slots_.get(), .slots = slots_.get()},
                    {.counts = counts_[set],
                     .num_rows = num_rows_[set],
                     .row_token = row_token_[set],
                     .row_weight = row_weight_[set],
                     .token_rows = token_rows_[set]},
                    shape_, tile_, workspace_.get());
  }
  void reset(const cuda::Stream& stream) override {
    copy(made_, scores_[0]);
    bias_.reset(stream);
    counts_.reset(stream);
    num_rows_.reset(stream);
    row_token_.reset(stream);
    row_weight_.reset(stream);
    token_rows_.reset(stream);
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    const reference::IndexShuffling& ref = as_made();
    std::vector<double> row_token(most_rows(), -1);
    std::ranges::copy(ref.row_token, row_token.begin());
    const std::vector<double> num_rows{static_cast<double>(ref.row_token.size())};
    std::vector<Difference> all{wrong("counts", counts_.host(stream), ref.counts),
                                wrong("num_rows", num_rows_.host(stream), num_rows),
                                wrong("row_token", row_token_.host(stream), row_token),
                                wrong("token_rows", token_rows_.host(stream), ref.token_rows),
                                weights(stream, ref)};
    if (kind_ == kExample) all.push_back(example(stream));
    return all;
  }
  // Where it changes the choice: the scores of the token in the middle, to zero.
  std::vector<Tile> tiles() override {
    std::vector<Tile> all{num_rows_.tile("num_rows", 0, 1)};
    const auto experts = static_cast<std::size_t>(shape_.experts_total);
    if (shape_.tokens == 0) return all;
    const std::size_t token = static_cast<std::size_t>(shape_.tokens) / 2;
    all.push_back(
        token_rows_.tile("rows of a token", token * static_cast<std::size_t>(shape_.topk), 1));
    std::vector<T> lost = made_;
    std::fill_n(lost.begin() + static_cast<std::ptrdiff_t>(token * experts), experts, T{});
    const reference::IndexShuffling& before = as_made();
    const reference::IndexShuffling after = expected(lost);
    if (after.row_token != before.row_token || after.token_rows != before.token_rows) {
      all.push_back({.what = "scores of a token",
                     .data = scores_[0].get() + token * experts,
                     .bytes = experts * sizeof(T)});
    }
    // -1 already says that a choice has no row.
    if (before.token_rows[token * static_cast<std::size_t>(shape_.topk)] == -1) {
      all.erase(all.begin() + 1);
    }
    return all;
  }
  [[nodiscard]] int num_sets() const override { return static_cast<int>(scores_.size()); }

 private:
  static IndexShufflingShape shape_of(const KernelOp& op) {
    const Dims& dims = op.dims;
    const IndexShufflingShape shape{
        .tokens = dim(dims, "tokens"),
        .experts_total = dim(dims, "experts_total"),
        .topk = dim(dims, "topk"),
        .groups = dim(dims, "groups"),
        .topk_groups = variant(dims, "topk_groups", (dim(dims, "groups") + 1) / 2),
        .group_score = variant(dims, "bias") != 0 ? GroupScore::kBestTwo : GroupScore::kBest,
        .slots = variant(dims, "slots"),
        .first_expert = variant(dims, "first_expert"),
        .experts = variant(dims, "slots_here", dim(dims, "experts")),
        .normalises = variant(dims, "normalises") != 0,
        .scale = variant(dims, "normalises") != 0 ? 2.5 : 1};
    require_index_shuffling_shape(shape);
    return shape;
  }
  // Experts backwards, then copies of every fifth.
  static std::vector<std::int32_t> slots_of(const IndexShufflingShape& shape) {
    std::vector<std::int32_t> slots(static_cast<std::size_t>(shape.slots));
    for (std::int64_t slot = 0; slot < shape.slots; ++slot) {
      const std::int64_t expert = slot < shape.experts_total ? shape.experts_total - 1 - slot
                                                             : 5 * slot % shape.experts_total;
      slots[static_cast<std::size_t>(slot)] = static_cast<std::int32_t>(expert);
    }
    return slots;
  }
  // The rule's, unless the op says how many "lanes" or blocks ("clusters" of "cluster").
  static IndexShufflingTile tile_of(const KernelOp& op, const IndexShufflingShape& shape) {
    IndexShufflingTile tile = index_shuffling_tile(shape);
    if (const std::int64_t lanes = variant(op.dims, "lanes"); lanes != 0) {
      const std::int64_t held = (shape.experts_total + 4 * lanes - 1) / (4 * lanes);
      tile.lanes = static_cast<int>(lanes);
      tile.vectors = static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(held)));
    }
    const std::int64_t clusters = variant(op.dims, "clusters");
    if (clusters == 0) return tile;
    tile.clusters = static_cast<int>(clusters);
    tile.cluster = static_cast<int>(variant(op.dims, "cluster", 1));
    const std::int64_t blocks = clusters * tile.cluster;
    tile.block_tokens = static_cast<int>((shape.tokens + blocks - 1) / blocks);
    tile.threads = static_cast<int>(variant(op.dims, "threads", 512));
    return tile;
  }

  [[nodiscard]] std::size_t choices() const {
    return static_cast<std::size_t>(shape_.tokens * shape_.topk);
  }
  [[nodiscard]] std::size_t most_rows() const {
    return static_cast<std::size_t>(shape_.tokens * std::min(shape_.topk, shape_.experts));
  }
  static void copy(const std::vector<T>& values, const cuda::DeviceBuffer<T>& to) {
    ORRERY_CUDA(
        cudaMemcpy(to.get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  [[nodiscard]] reference::IndexShuffling expected(const std::vector<T>& scores) const {
    std::vector<double> values;
    values.reserve(scores.size());
    for (const T score : scores) values.push_back(static_cast<double>(static_cast<float>(score)));
    return reference::index_shuffling(values, has_bias_ ? bias_.made() : std::vector<double>{},
                                      shape_, expert_of_slot_);
  }
  const reference::IndexShuffling& as_made() {
    if (!as_made_) as_made_ = expected(made_);
    return *as_made_;
  }
  template <typename Ref>
  static Difference wrong(const char* what, const std::vector<double>& out, const Ref& ref) {
    double wrong = out.size() >= ref.size() ? 0 : 1;
    for (std::size_t i = 0; i < std::min<std::size_t>(out.size(), ref.size()); ++i) {
      wrong += out[i] == static_cast<double>(ref[i]) ? 0 : 1;
    }
    return {.what = std::string("wrong ") + what, .error = wrong, .bound = 0};
  }
  // NaN where the reference says so; elsewhere within fp32's rounding.
  [[nodiscard]] Difference weights(const cuda::Stream& stream,
                                   const reference::IndexShuffling& ref) const {
    std::vector<double> out = row_weight_.host(stream);
    out.resize(ref.row_weight.size());
    std::vector<double> wanted = ref.row_weight;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const bool is_same =
          std::isnan(wanted[i]) ? std::isnan(out[i]) : std::isinf(wanted[i]) && out[i] == wanted[i];
      if (is_same) out[i] = wanted[i] = 0;
    }
    return difference("row_weight", out, wanted, 1e-6);
  }
  // The example of expanded rows: numbers of choices column by column.
  [[nodiscard]] Difference example(const cuda::Stream& stream) const {
    const auto rows = host_copy(stream, token_rows_[0], choices());
    const auto tokens = host_copy(stream, row_token_[0], most_rows());
    const auto counts = host_copy(stream, counts_[0], counts_.count());
    const std::vector<std::int32_t> row_idx{0, 3, 1, 4, 2, 5};
    bool is_right = std::ranges::is_permutation(rows, row_idx);  // else init_routing throws
    reference::InitRouting routing;
    if (is_right) routing = reference::init_routing(rows, tokens, counts, row_idx);
    is_right = is_right && routing.expanded_token == std::vector<std::int32_t>{1, 0, 1, 2, 0, 2} &&
               routing.expanded_row_idx == std::vector<std::int32_t>{1, 0, 3, 4, 2, 5} &&
               routing.expanded_expert_idx == std::vector<std::int32_t>{0, 1, 1, 1, 2, 2};
    return {.what = "wrong expanded rows", .error = is_right ? 0.0 : 1.0, .bound = 0};
  }

  IndexShufflingShape shape_;
  ScoreKind kind_;
  IndexShufflingTile tile_;
  InputSets<float> bias_;
  bool has_bias_;
  std::vector<std::int32_t> expert_of_slot_;  // the variant "slots": so many; none without it
  cuda::DeviceBuffer<std::int32_t> first_slots_{0};
  cuda::DeviceBuffer<std::int32_t> slots_{0};
  std::vector<T> host_;
  std::vector<T> made_;  // scores of set 0
  std::optional<reference::IndexShuffling> as_made_;
  std::vector<cuda::DeviceBuffer<T>> scores_;
  OutputSets<std::int32_t> counts_;
  OutputSets<std::int32_t> num_rows_;
  OutputSets<std::int32_t> row_token_;
  OutputSets<float> row_weight_;
  OutputSets<std::int32_t> token_rows_;
  cuda::DeviceBuffer<std::byte> workspace_;
};

using Variants = std::vector<std::pair<std::string_view, std::int64_t>>;

KernelOp op(DType dtype, std::int64_t tokens, std::int64_t experts_total, std::int64_t topk,
            std::int64_t groups, std::int64_t experts, const Variants& variants = {}) {
  KernelOp op{.kernel = "index_shuffling",
              .dtype = dtype,
              .dims = {{"tokens", tokens},
                       {"experts_total", experts_total},
                       {"topk", topk},
                       {"groups", groups},
                       {"experts", experts}}};
  for (const auto& [name, size] : variants) op.dims.push_back({std::string(name), size, {}});
  return op;
}
KernelOp op(std::int64_t tokens, std::int64_t experts, std::int64_t topk,
            const Variants& variants = {}) {
  return op(DType::kFp32, tokens, experts, topk, 1, experts, variants);
}

// No tokens; one expert; experts and tokens just around a vector, a warp, a block, a cluster; every
// number of lanes per token; experts elsewhere; groups of every kind; all kinds of scores; one
// block, one cluster and several.
std::vector<KernelOp> check_ops() {
  std::vector<KernelOp> ops{op(3, 3, 2, {{"scores", kExample}})};
  for (const std::int64_t tokens : {0, 1, 33, 1021}) {
    for (const std::int64_t experts : {1, 7, 16, 60, 128, 160, 257, 512}) {
      for (const std::int64_t topk : {1, 3, 8}) {
        if (topk > experts) continue;
        ops.push_back(op(tokens, experts, topk,
                         {{"scores", (tokens + experts + topk) % 4}, {"normalises", topk / 2}}));
      }
    }
  }
  for (const ScoreKind kind : {kNormal, kTied, kSkewed, kNotNumbers}) {
    const Variants made{{"scores", kind}};
    const auto with = [&](Variants more) {
      more.insert(more.begin(), made.begin(), made.end());
      return more;
    };
    ops.insert(
        ops.end(),
        {op(4099, 16, 1, made), op(4099, 128, 2, made), op(16411, 128, 1, made),
         op(16384, 256, 8, with({{"normalises", 1}})), op(70001, 64, 6, made),
         op(DType::kFp32, 1021, 256, 8, 8, 256,
            with({{"topk_groups", 4}, {"bias", 1}, {"normalises", 1}})),
         op(DType::kFp32, 130, 160, 6, 8, 160, with({{"topk_groups", 3}})),
         op(DType::kFp32, 77, 96, 4, 32, 96, with({{"topk_groups", 5}, {"bias", 1}})),
         op(DType::kFp32, 50, 12, 3, 4, 12, with({{"topk_groups", 1}})),
         op(DType::kFp32, 50, 9, 2, 9, 9, with({{"topk_groups", 4}, {"bias", 1}})),
         op(DType::kFp32, 333, 64, 6, 1, 16, with({{"first_expert", 32}, {"bias", 1}})),
         op(DType::kFp32, 5000, 128, 8, 1, 5, with({{"first_expert", 123}})),
         op(DType::kFp32, 1021, 128, 8, 1, 128, with({{"slots", 134}, {"slots_here", 134}})),
         op(DType::kFp32, 5000, 256, 8, 8, 36,
            with({{"slots", 288}, {"first_expert", 252}, {"topk_groups", 4}, {"bias", 1}})),
         op(DType::kBf16, 1021, 128, 8, 1, 128, made), op(DType::kBf16, 77, 30, 2, 1, 30, made)});
  }
  for (const std::int64_t lanes : {4, 8, 16, 32}) {
    for (const std::int64_t experts : {4 * lanes - 3, 8 * lanes, 16 * lanes}) {
      ops.push_back(op(1021, experts, 3, {{"scores", kTied}, {"lanes", lanes}}));
    }
  }
  for (const std::int64_t cluster : {1, 2, 4, 8, 16}) {
    for (const std::int64_t clusters : {1, 2, 6}) {
      ops.push_back(op(1021, 128, 2, {{"clusters", clusters}, {"cluster", cluster}}));
    }
  }
  return ops;
}

std::vector<KernelOp> bench_ops() {
  std::vector<KernelOp> ops;
  for (const std::int64_t experts : {16, 64, 128, 256}) {
    for (const std::int64_t topk : {1, 2, 6, 8}) {
      for (const std::int64_t tokens : {1, 64, 128, 512, 2048, 4096, 8192, 16384}) {
        ops.push_back(op(tokens, experts, topk));
      }
    }
  }
  for (const std::int64_t tokens : {1, 128, 4096, 16384}) {
    ops.push_back(op(DType::kFp32, tokens, 256, 8, 8, 256,
                     {{"topk_groups", 4}, {"bias", 1}, {"normalises", 1}}));
  }
  return ops;
}

std::vector<Grid> grids() {
  return {{.dtype = DType::kFp32,
           .axes = {{.dim = "tokens", .values = {1, 64, 1024, 4096, 16384, 65536}},
                    {.dim = "experts_total", .values = {8, 16, 64, 128, 256}},
                    {.dim = "topk", .values = {1, 2, 4, 8}},
                    {.dim = "groups", .values = {1}},
                    {.dim = "experts", .values = {8, 16, 64, 128, 256}}},
           .accept = [](const Dims& dims) {
             return dim(dims, "experts") == dim(dims, "experts_total");
           }}};
}

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  if (op.dtype == DType::kFp32) return std::make_unique<IndexShufflingCase<float>>(op, options);
  if (op.dtype == DType::kBf16) return std::make_unique<IndexShufflingCase<bf16>>(op, options);
  throw std::invalid_argument("index_shuffling takes fp32 and bf16, not " +
                              std::string(to_text(op.dtype)));
}

}  // namespace

Launch bind_index_shuffling(const BindContext& context);  // bind.cpp

GpuKernel index_shuffling_gpu() {
  return {.name = "index_shuffling",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_index_shuffling};
}

}  // namespace orrery
