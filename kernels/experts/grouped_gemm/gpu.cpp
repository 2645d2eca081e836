#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "kernels/experts/grouped_gemm/chosen_counts.h"
#include "kernels/experts/grouped_gemm/grouped_gemm.h"
#include "kernels/experts/grouped_gemm/reference.h"
#include "kernels/experts/grouped_gemm/tiled.h"
#include "kernels/experts/grouped_gemm/types.h"
#include "kernels/harness/operand_sets.h"

namespace orrery {
namespace {

// How the rows of a call lie among the groups (variant "spread" of an op).
enum Spread : std::int64_t {
  kChosen,  // as tokens that choose by themselves leave them
  kEven,    // evenly over `active` groups, these evenly over all
  kOne,     // all in the last group but one
  kRagged,  // random
  kZipf,    // in proportion to 1 / (1 + group)
  kBroken,  // negative counts, and more in all than there is room for
  kShared,  // half of them in the last group, the others even over those before
};

// Evenly over `active` groups, these evenly over all.
std::vector<std::int32_t> even_counts(std::int64_t rows, std::int64_t groups, std::int64_t active) {
  std::vector<std::int32_t> counts(static_cast<std::size_t>(groups));
  for (std::int64_t i = 0; i < active; ++i) {
    counts[static_cast<std::size_t>(i * groups / active)] =
        static_cast<std::int32_t>(rows * (i + 1) / active - rows * i / active);
  }
  return counts;
}

// In proportion to `weights`, whole rows, `rows` in all.
std::vector<std::int32_t> proportional(std::int64_t rows, const std::vector<double>& weights) {
  double total = 0;
  for (const double weight : weights) total += weight;
  std::vector<std::int32_t> counts;
  double before = 0;
  for (const double weight : weights) {
    const auto cut = [&](double sum) {
      return std::llround(static_cast<double>(rows) * sum / total);
    };
    counts.push_back(static_cast<std::int32_t>(cut(before + weight) - cut(before)));
    before += weight;
  }
  return counts;
}

std::vector<std::int32_t> make_counts(const Dims& dims) {
  const std::int64_t rows = dim(dims, "rows");
  const std::int64_t groups = dim(dims, "groups");
  std::vector<double> weights(static_cast<std::size_t>(groups));
  std::vector<std::int32_t> counts;
  const std::int64_t active = std::min(dim(dims, "active"), rows);
  switch (variant(dims, "spread", kChosen)) {
    case kEven:
      return even_counts(rows, groups, active);
    case kOne:
      counts.assign(weights.size(), 0);
      counts[static_cast<std::size_t>(std::max<std::int64_t>(groups - 2, 0))] =
          static_cast<std::int32_t>(rows);
      return counts;
    case kRagged:
      for (std::size_t i = 0; i < weights.size(); ++i) {  // a few of them zero
        weights[i] = std::max(std::fmod(static_cast<double>(i + 1) * 0.618, 1.0) - 0.2, 0.0);
      }
      if (groups == 1) weights[0] = 1;
      return proportional(rows, weights);
    case kZipf:
      for (std::size_t i = 0; i < weights.size(); ++i)
        weights[i] = 1.0 / static_cast<double>(i + 1);
      return proportional(rows, weights);
    case kBroken:
      counts = even_counts(rows, groups, groups);
      counts.front() = -7;
      counts.back() = 0x7FFFFFFF;
      return counts;
    case kShared:
      counts = even_counts(rows - rows / 2, groups - 1, groups - 1);
      counts.push_back(static_cast<std::int32_t>(rows / 2));
      return counts;
    default:
      return chosen_counts(rows, groups, active);
  }
}

GroupedGemmShape shape_of(const KernelOp& op) {
  const GroupedGemmShape shape{.dtype = op.dtype,
                               .max_rows = dim(op.dims, "rows") + variant(op.dims, "slack"),
                               .n = dim(op.dims, "n"),
                               .k = dim(op.dims, "k"),
                               .groups = dim(op.dims, "groups")};
  require_grouped_gemm_shape(shape);
  return shape;
}

// The tile that the op's variants name, else that of the rule.
GroupedGemmChoice choice_of(const KernelOp& op, const GroupedGemmShape& shape) {
  const auto named = [&](std::string_view name, int otherwise) {
    return static_cast<int>(variant(op.dims, name, otherwise));
  };
  const GroupedGemmLoad load{.rows = dim(op.dims, "rows"), .active = dim(op.dims, "active")};
  if (const int columns = named("columns", 0); columns != 0) {
    return TiledChoice{.rows = named("tile_rows", TiledChoice{}.rows),
                       .columns = columns,
                       .block_rows = named("block_rows", TiledChoice{}.block_rows)};
  }
  if (named("tokens", 0) == 0) return choose_grouped_gemm(shape, load);
  StreamedTile tile{.tokens = named("tokens", 8),
                    .rows = named("tile_rows", 64),
                    .panels = named("panels", 2),
                    .blocks_per_sm = named("per_sm", 1),
                    .cuts = named("cuts", 1)};
  tile = with_most_stages(tile, shape.groups);
  tile.stages = named("stages", tile.stages);
  return tile;
}

// Of x. Variants: "overflows", so that a third of the sums over k are beyond fp16's range;
// "subnormal", most values below its least exponent.
float x_deviation(const Dims& dims) {
  if (variant(dims, "overflows") != 0) {
    return 65536.0f / std::sqrt(static_cast<float>(dim(dims, "k")));
  }
  return variant(dims, "subnormal") != 0 ? 0x1p-15f : 1.0f;
}

// Values of `y`, in fp16, whose reference is beyond fp16's range or so near its end that either is
// right: how many are not infinite or at the end. They and their references are 0 from here on.
std::size_t drop_infinite(std::span<double> y, std::span<double> ref) {
  constexpr double kEnd = 65520;  // rounded to infinity
  constexpr double kNear = 1e-3;  // more than sums in fp32 are off
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double size = std::abs(ref[i]);
    if (size < kEnd * (1 - kNear)) continue;
    const double least = size > kEnd * (1 + kNear) ? std::numeric_limits<double>::infinity()
                                                   : kEnd * (1 - 2 * kNear);
    const bool is_right = std::copysign(1.0, ref[i]) * y[i] >= least;  // false for NaN
    if (!is_right) ++wrong;
    y[i] = ref[i] = 0;
  }
  return wrong;
}

// Operands in as many sets as asked for, counts alike in all. Rows of x past the sum of counts and
// w of groups without rows are NaN.
template <typename T>
class GroupedGemmCase final : public KernelCase {
 public:
  GroupedGemmCase(const KernelOp& op, const CaseOptions& options)
      : shape_(shape_of(op)),
        counts_(make_counts(op.dims)),
        device_counts_(device_copy(std::span<const std::int32_t>(counts_))),
        plan_(shape_, choice_of(op, shape_),
              {.overlap = variant(op.dims, "overlap") != 0, .free_sms = op.free_sms}),
        x_(static_cast<std::size_t>(shape_.max_rows * shape_.k), options.seed, options.sets,
           x_deviation(op.dims)),
        w_(static_cast<std::size_t>(shape_.groups * shape_.n * shape_.k), options.seed + 1,
           options.sets),
        y_(static_cast<std::size_t>(shape_.max_rows * shape_.n), options.sets),
        x_scale_(static_cast<std::size_t>(std::max<std::int64_t>(shape_.max_rows, 1))),
        w_scale_(static_cast<std::size_t>(shape_.groups * shape_.n)) {
    for (std::int32_t& count : counts_) {  // as they are taken
      count =
          static_cast<std::int32_t>(std::clamp<std::int64_t>(count, 0, shape_.max_rows - rows_));
      rows_ += count;
    }
    const cuda::Stream stream;
    fill_uniform(stream, x_scale_.get(), x_scale_.size(), options.seed + 2, 0.5f, 1.5f);
    fill_uniform(stream, w_scale_.get(), w_scale_.size(), options.seed + 3, 0.5f, 1.5f);
    stream.synchronize();
  }

  void launch(const cuda::Stream& stream, int set) override {
    plan_.launch(stream, {.x = x_[set],
                          .w = w_[set],
                          .counts = device_counts_.get(),
                          .y = y_[set],
                          .x_scale = kIsFp8 ? x_scale_.get() : nullptr,
                          .w_scale = kIsFp8 ? w_scale_.get() : nullptr});
  }
  void reset(const cuda::Stream& stream) override {
    x_.reset(stream);
    w_.reset(stream);
    y_.reset(stream);
    poison(stream, x_[0] + rows_ * shape_.k, (shape_.max_rows - rows_) * shape_.k);
    const std::int64_t size = shape_.n * shape_.k;
    for (std::int64_t group = 0; group < shape_.groups; ++group) {
      if (counts_[static_cast<std::size_t>(group)] == 0) {
        poison(stream, w_[0] + group * size, size);
      }
    }
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    if (ref_.empty()) make_reference(stream);
    std::vector<double> values = y_.host(stream);
    std::vector<double> ref = ref_;
    const auto y = std::span(values).first(static_cast<std::size_t>(rows_ * shape_.n));
    const auto past = std::span(values).subspan(y.size());
    const auto touched =
        std::ranges::count_if(past, [](double value) { return !std::isnan(value); });
    const std::size_t not_infinite = kIsFp16 ? drop_infinite(y, ref) : 0;
    std::vector<Difference> found{
        difference("y", y, std::span(ref).first(y.size()), kBound),
        {.what = "values of rows past the sum", .error = static_cast<double>(touched)}};
    if (kIsFp16) {
      found.push_back({.what = "values beyond the range that are not infinite",
                       .error = static_cast<double>(not_infinite)});
    }
    return found;
  }
  std::vector<Tile> tiles() override {
    if (rows_ == 0) return {};
    const auto k = static_cast<std::size_t>(shape_.k);
    const std::size_t k_tile = std::min<std::size_t>(k, 128 / sizeof(T));
    const auto most = static_cast<std::size_t>(std::ranges::max_element(counts_) - counts_.begin());
    const auto rows = static_cast<std::size_t>(rows_);
    const auto n = static_cast<std::size_t>(shape_.n);
    return {y_.tile("64 columns of the first row", 0, std::min<std::size_t>(n, 64)),
            y_.tile("the last column of the last row", rows * n - 1, 1),
            w_.tile("w of the group with most rows", most * n * k, n * k),
            x_.tile("the last K tile of the last row", rows * k - k_tile, k_tile)};
  }
  [[nodiscard]] int num_sets() const override { return x_.num_sets(); }

 private:
  static constexpr bool kIsFp8 = std::is_same_v<T, fp8>;
  static constexpr bool kIsFp16 = std::is_same_v<T, fp16>;
  static constexpr double kBound = kIsFp16 ? kFp16Bound : kBf16Bound;

  static void poison(const cuda::Stream& stream, T* data, std::int64_t count) {
    ORRERY_CUDA(
        cudaMemsetAsync(data, 0xFF, static_cast<std::size_t>(count) * sizeof(T), stream.get()));
  }
  void make_reference(const cuda::Stream& stream) {
    const std::vector<double> x_scale = host_double(stream, x_scale_.get(), x_scale_.size());
    const std::vector<double> w_scale = host_double(stream, w_scale_.get(), w_scale_.size());
    ref_.resize(static_cast<std::size_t>(shape_.max_rows * shape_.n));
    reference::GroupedGemmScales scales;
    if (kIsFp8 && shape_.max_rows > 0) scales = {.x = x_scale, .w = w_scale};
    reference::grouped_gemm(x_.made(), w_.made(), counts_, shape_.n, shape_.k, ref_, scales);
  }

  GroupedGemmShape shape_;
  std::vector<std::int32_t> counts_;
  cuda::DeviceBuffer<std::int32_t> device_counts_;
  std::int64_t rows_ = 0;  // the sum of counts
  GroupedGemmPlan plan_;
  InputSets<T> x_;
  InputSets<T> w_;
  OutputSets<GroupedGemmResult<T>> y_;
  cuda::DeviceBuffer<float> x_scale_;
  cuda::DeviceBuffer<float> w_scale_;
  std::vector<double> ref_;
};

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  return with_grouped_gemm_type(op.dtype, [&]<typename T>() -> std::unique_ptr<KernelCase> {
    return std::make_unique<GroupedGemmCase<T>>(op, options);
  });
}

struct Sizes {
  std::int64_t rows;
  std::int64_t n;
  std::int64_t k;
  std::int64_t groups;
  std::int64_t active;
};

KernelOp op(DType dtype, const Sizes& sizes, const Dims& variants = {}) {
  KernelOp op{.kernel = "grouped_gemm",
              .dtype = dtype,
              .dims = {{"rows", sizes.rows},
                       {"n", sizes.n},
                       {"k", sizes.k},
                       {"groups", sizes.groups},
                       {"active", sizes.active}}};
  op.dims.insert(op.dims.end(), variants.begin(), variants.end());
  return op;
}

constexpr DType kDTypes[] = {DType::kBf16, DType::kFp16, DType::kFp8};
constexpr DType kMeasuredDTypes[] = {DType::kBf16, DType::kFp8};  // fp16 takes the rows of bf16

// What fp16 alone has, for each kernel: infinities and subnormal values.
void add_range_ops(std::vector<KernelOp>& ops) {
  for (const char* const range : {"overflows", "subnormal"}) {
    const auto add = [&](const Sizes& sizes, Dims variants = {}) {
      variants.push_back({range, 1});
      ops.push_back(op(DType::kFp16, sizes, variants));
    };
    add({60, 331, 1040, 5, 5}, {{"slack", 3}});
    add({2, 16, 8192, 2, 2});  // sums in pieces
    add({500, 328, 528, 5, 3},
        {{"columns", kSwapAbChoice.columns}, {"tile_rows", kSwapAbChoice.rows}});
    add({1500, 264, 528, 3, 3});
  }
}

// Tiles of both kinds in each order: columns faster than rows, blocks of rows, rows faster.
void add_orders(std::vector<KernelOp>& ops, const Sizes& sizes, std::int64_t spread) {
  for (const TiledChoice& choice : {TiledChoice{}, kSwapAbChoice}) {
    for (const std::int64_t block_rows : {std::int64_t{1}, std::int64_t{2048}, sizes.rows}) {
      ops.push_back(op(DType::kBf16, sizes,
                       {{"spread", spread},
                        {"columns", choice.columns},
                        {"tile_rows", choice.rows},
                        {"block_rows", block_rows}}));
    }
  }
}

// Rows around each width of the MMA and past the widest, n and k around the tiles, counts of all
// kinds; then every tile there is.
std::vector<KernelOp> check_ops() {
  std::vector<KernelOp> ops;
  for (const DType dtype : kDTypes) {
    const auto add = [&](const Sizes& sizes, const Dims& variants = {}) {
      ops.push_back(op(dtype, sizes, variants));
    };
    add({1, 1, 16, 1, 1});
    add({0, 64, 64, 4, 0});
    add({0, 64, 64, 4, 0}, {{"slack", 9}});
    for (const std::int64_t rows : {1, 8, 9, 16, 17, 33, 64, 65, 200}) {
      add({rows, 331, 1040, 1, 1});
      add({3 * rows, 264, 528, 5, 3}, {{"slack", 11}});
    }
    for (const std::int64_t spread : {kOne, kRagged, kZipf, kBroken}) {
      add({60, 328, 1040, 16, 16}, {{"spread", spread}, {"slack", 5}});
      add({700, 264, 272, 128, 128}, {{"spread", spread}});
      add({301, 72, 208, 512, 301}, {{"spread", spread}, {"slack", 1}});
      add({5, 136, 144, 3, 3}, {{"spread", spread}});
    }
    add({512, 64, 128, 512, 512});
    add({5000, 520, 144, 3, 3}, {{"spread", kZipf}});  // several rounds of tiles, blocks of rows
    add({128, 512, 1024, 16, 16});
    // Each width of the MMAs, rows around it, groups of several tiles.
    const Dims swap_ab{{"columns", kSwapAbChoice.columns}, {"tile_rows", kSwapAbChoice.rows}};
    for (const std::int64_t rows : {1, 16, 17, 33, 65, 97, 128, 129, 145, 160, 161, 300, 500}) {
      add({rows, 331, 1040, 1, 1}, swap_ab);
      add({3 * rows, 264, 528, 5, 3}, swap_ab);
    }
    for (const std::int64_t spread : {kEven, kOne, kRagged, kZipf, kBroken}) {
      Dims spread_swap_ab = swap_ab;
      spread_swap_ab.insert(spread_swap_ab.end(), {{"spread", spread}, {"slack", 5}});
      add({3000, 328, 272, 16, 16}, spread_swap_ab);
      add({5000, 520, 144, 40, 40}, spread_swap_ab);
    }
    if (dtype == DType::kBf16) add_orders(ops, {5000, 520, 144, 3, 3}, kZipf);
    add({2, 16, 8192, 2, 2});  // more blocks than work items: each in many pieces
    add({56, 320, 2064, 28, 28}, {{"tokens", 8}, {"cuts", 8}});  // 132 items and 8 that are cut
    add({60, 520, 2064, 6, 6}, {{"spread", kShared}, {"tokens", 64}, {"cuts", 4}});
    add({40, 520, 2064, 9, 7}, {{"overlap", 1}});
    add({40, 520, 2064, 9, 7}, {{"tokens", 16}, {"cuts", 5}, {"overlap", 1}});
    for (const auto& [tile_rows, panels] : {std::pair{64, 2}, {64, 4}, {128, 2}}) {
      for (const std::int64_t tokens : {8, 16, 32, 64}) {
        const Dims tile{{"tokens", tokens}, {"tile_rows", tile_rows}, {"panels", panels}};
        Dims zipf = tile;
        zipf.insert(zipf.end(), {{"spread", kZipf}, {"per_sm", 1 + tokens / 16 % 2}});
        add({150, 392, 1552, 6, 6}, zipf);
        Dims cut = tile;
        cut.insert(cut.end(), {{"cuts", 3 + tokens / 8}});
        add({50, 264, 2064, 3, 2}, cut);
      }
    }
  }
  add_range_ops(ops);
  return ops;
}

// Llama 4's layers on eight GPUs: Scout's 16 experts and Maverick's 128, decode and prefill.
std::vector<KernelOp> bench_ops() {
  std::vector<KernelOp> ops;
  for (const DType dtype : kDTypes) {
    for (const auto& [groups, rows] :
         {std::pair<std::int64_t, std::int64_t>{16, 8}, {128, 1}, {16, 1024}, {128, 128}}) {
      ops.push_back(op(dtype, {groups * rows, 2048, 5120, groups, groups}));
      ops.push_back(op(dtype, {groups * rows, 5120, 1024, groups, groups}));
    }
    // As many rows with room for more behind them, which is to cost nothing.
    ops.push_back(op(dtype, {128, 2048, 5120, 16, 16}, {{"slack", 16256}}));
    ops.push_back(op(dtype, {16384, 2048, 5120, 16, 16}, {{"slack", 49152}}));
    // The layer of fused_moe's bench.
    ops.push_back(op(dtype, {16384, 4096, 2048, 64, 64}));
    ops.push_back(op(dtype, {16384, 2048, 2048, 64, 64}));
  }
  // Orders of tiles (docs/moe.md): weights of a group that the L2 cache keeps, and not.
  for (const Sizes& sizes : {Sizes{16384, 2048, 5120, 16, 16}, Sizes{32768, 28672, 4096, 8, 8},
                             Sizes{16384, 5120, 8192, 2, 2}}) {
    add_orders(ops, sizes, kChosen);
  }
  return ops;
}

// Experts of Llama 4 (whole and over 8 GPUs) and of Qwen3-30B-A3B, all or a part of them on a GPU.
std::vector<Grid> grids() {
  std::vector<Grid> grids;
  const auto fits = [](const Dims& dims) {
    constexpr std::int64_t kMostElements = std::int64_t{1} << 34;  // of w
    const std::int64_t groups = dim(dims, "groups");
    const std::int64_t active = dim(dims, "active");
    return active <= groups && active <= dim(dims, "rows") &&
           groups * dim(dims, "n") * dim(dims, "k") <= kMostElements;
  };
  for (const DType dtype : kMeasuredDTypes) {
    grids.push_back({.dtype = dtype,
                     .axes = {{.dim = "rows", .values = {16, 128, 1024, 16384}},
                              {.dim = "n", .values = {1536, 2048, 5120, 16384}},
                              {.dim = "k", .values = {768, 2048, 5120, 8192}},
                              {.dim = "groups", .values = {16, 128}},
                              {.dim = "active", .values = {1, 4, 16, 64, 128}, .multiple = 1}},
                     .accept = fits});
  }
  return grids;
}

}  // namespace

Launch bind_grouped_gemm(const BindContext& context);  // bind.cpp

GpuKernel grouped_gemm_gpu() {
  return {.name = "grouped_gemm",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_grouped_gemm};
}

}  // namespace orrery
