#include <algorithm>

#include "kernels/experts/grouped_gemm/chosen_counts.h"
#include "kernels/experts/grouped_gemm_gather/grouped_gemm_gather.h"
#include "kernels/experts/grouped_gemm_gather/reference.h"
#include "kernels/harness/operand_sets.h"

namespace orrery {
namespace {

// As tokens that choose by themselves leave them; "ragged": in growing parts of 1, 2, 3, ...;
// "broken": negative counts, and more in all than there is room for.
std::vector<std::int32_t> make_counts(const Dims& dims) {
  const std::int64_t rows = dim(dims, "rows");
  const std::int64_t groups = dim(dims, "groups");
  const std::int64_t active = std::min(dim(dims, "active"), rows);
  std::vector<std::int32_t> counts = variant(dims, "ragged") == 0
                                         ? chosen_counts(rows, groups, active)
                                         : growing_counts(rows, groups, active);
  if (variant(dims, "broken") != 0) {
    counts.front() = -7;
    counts.back() = 0x7FFFFFFF;
  }
  return counts;
}

GroupedGemmShape shape_of(const KernelOp& op) {
  const GroupedGemmShape shape{.dtype = op.dtype,
                               .max_rows = dim(op.dims, "rows") + variant(op.dims, "slack"),
                               .n = dim(op.dims, "n"),
                               .k = dim(op.dims, "k"),
                               .groups = dim(op.dims, "groups")};
  require_gathered_gemm_shape(shape);
  return shape;
}

// That with so many rows as the variant "tile_rows" names, else that of the rule.
TiledChoice tile_of(const KernelOp& op, const GroupedGemmShape& shape) {
  const std::int64_t rows = variant(op.dims, "tile_rows");
  if (rows == 0) {
    return choose_tile(shape, {.rows = dim(op.dims, "rows"), .active = dim(op.dims, "active")});
  }
  return rows == kSwapAbChoice.rows ? kSwapAbChoice : TiledChoice{.rows = static_cast<int>(rows)};
}

// Variants: "slack", rows that there is room for beyond those there are, whose token and weight are
// none; "topk", the most rows of a token (else as many as rows need); "weighed"; "tile_rows",
// "ragged", "broken". In checks two rows are of tokens that are not there; x of tokens without rows
// and w of groups without are NaN.
class GroupedGemmGatherCase final : public KernelCase {
 public:
  GroupedGemmGatherCase(const KernelOp& op, const CaseOptions& options)
      : seed_(options.seed),
        tokens_(dim(op.dims, "tokens")),
        is_weighed_(variant(op.dims, "weighed") != 0),
        shape_(shape_of(op)),
        tile_(tile_of(op, shape_)),
        counts_(make_counts(op.dims)),
        row_tokens_(make_tokens(op, options)),
        x_(size(tokens_ * shape_.k), options.seed, options.sets),
        w_(size(shape_.groups * shape_.n * shape_.k), options.seed + 1, options.sets),
        y_(size(shape_.max_rows * shape_.n), options.sets),
        weights_(size(std::max<std::int64_t>(shape_.max_rows, 1))),
        device_counts_(device_copy(std::span<const std::int32_t>(counts_))),
        device_tokens_(weights_.size()) {
    for (std::int32_t& count : counts_) {  // as they are taken
      count =
          static_cast<std::int32_t>(std::clamp<std::int64_t>(count, 0, shape_.max_rows - rows_));
      rows_ += count;
    }
    const cuda::Stream stream;
    fill_weights(stream);
    ORRERY_CUDA(cudaMemcpyAsync(device_tokens_.get(), row_tokens_.data(),
                                row_tokens_.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice,
                                stream.get()));
    stream.synchronize();
  }

  void launch(const cuda::Stream& stream, int set) override {
    grouped_gemm_gather(stream, shape_, tile_,
                        {.x = x_[set],
                         .tokens = tokens_,
                         .row_token = device_tokens_.get(),
                         .row_weight = is_weighed_ ? weights_.get() : nullptr,
                         .w = w_[set],
                         .counts = device_counts_.get(),
                         .y = y_[set]});
  }
  void reset(const cuda::Stream& stream) override {
    x_.reset(stream);
    w_.reset(stream);
    y_.reset(stream);
    fill_weights(stream);
    std::vector<bool> has_row(size(tokens_));
    for (std::int64_t row = 0; row < rows_; ++row) {
      if (is_there(row_tokens_[size(row)])) has_row[size(row_tokens_[size(row)])] = true;
    }
    for (std::int64_t token = 0; token < tokens_; ++token) {
      if (!has_row[size(token)]) poison(stream, x_[0] + token * shape_.k, shape_.k);
    }
    const std::int64_t of_group = shape_.n * shape_.k;
    for (std::int64_t group = 0; group < shape_.groups; ++group) {
      if (counts_[size(group)] == 0) poison(stream, w_[0] + group * of_group, of_group);
    }
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    if (ref_.empty()) make_reference(stream);
    std::vector<double> y = y_.host(stream);
    const std::size_t written = cut_written(y, size(rows_ * shape_.n));
    return {difference("y", y, std::span(ref_).first(y.size()), kBf16Bound),
            {.what = "values of rows past the sum", .error = static_cast<double>(written)}};
  }
  std::vector<Tile> tiles() override {
    std::int64_t row = rows_ - 1;  // the last one of a token that is there
    while (row >= 0 && !is_there(row_tokens_[size(row)])) --row;
    if (row < 0) return {};
    const auto k = size(shape_.k);
    const auto n = size(shape_.n);
    const std::size_t k_tile = std::min<std::size_t>(k, 64);
    const auto most = size(std::ranges::max_element(counts_) - counts_.begin());
    std::vector<Tile> tiles{y_.tile("64 columns of the first row", 0, std::min<std::size_t>(n, 64)),
                            y_.tile("the last column of the last row", size(rows_) * n - 1, 1),
                            w_.tile("w of the group with most rows", most * n * k, n * k),
                            x_.tile("the last K tile of the last row's token",
                                    (size(row_tokens_[size(row)]) + 1) * k - k_tile, k_tile)};
    if (is_weighed_) {
      tiles.push_back(
          {.what = "the last row's weight", .data = weights_.get() + row, .bytes = sizeof(float)});
    }
    return tiles;
  }
  [[nodiscard]] int num_sets() const override { return x_.num_sets(); }

 private:
  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }
  static void poison(const cuda::Stream& stream, bf16* data, std::int64_t count) {
    ORRERY_CUDA(cudaMemsetAsync(data, 0xFF, size(count) * sizeof(bf16), stream.get()));
  }
  [[nodiscard]] bool is_there(std::int32_t token) const { return token >= 0 && token < tokens_; }
  [[nodiscard]] std::vector<std::int32_t> make_tokens(const KernelOp& op,
                                                      const CaseOptions& options) const {
    const bool is_broken = variant(op.dims, "broken") != 0;  // rows with room for them all
    const std::int64_t rows = is_broken ? shape_.max_rows : dim(op.dims, "rows");
    const std::int64_t topk = variant(op.dims, "topk", (rows + tokens_ - 1) / tokens_);
    std::vector<std::int32_t> tokens = chosen_tokens(rows, tokens_, topk, options.seed);
    if (options.vary && tokens.size() > 2) {
      tokens[1] = -1;
      tokens[tokens.size() / 2] = static_cast<std::int32_t>(tokens_);
    }
    tokens.resize(size(shape_.max_rows), -1);
    return tokens;
  }
  void fill_weights(const cuda::Stream& stream) {
    fill_uniform(stream, weights_.get(), weights_.size(), seed_ + 2, 0.25f, 1.0f);
  }
  void make_reference(const cuda::Stream& stream) {
    const std::vector<double> weights = host_double(stream, weights_.get(), weights_.size());
    reference::GatheredRows rows{.tokens = row_tokens_};
    if (is_weighed_) rows.weights = std::span(weights).first(size(shape_.max_rows));
    ref_.resize(size(shape_.max_rows * shape_.n));
    reference::grouped_gemm_gather(x_.made(), rows, w_.made(), counts_, shape_.n, shape_.k, ref_);
  }

  std::uint64_t seed_;
  std::int64_t tokens_;
  bool is_weighed_;
  GroupedGemmShape shape_;
  TiledChoice tile_;
  std::vector<std::int32_t> counts_;
  std::vector<std::int32_t> row_tokens_;
  std::int64_t rows_ = 0;  // the sum of counts
  InputSets<bf16> x_;
  InputSets<bf16> w_;
  OutputSets<bf16> y_;
  cuda::DeviceBuffer<float> weights_;
  cuda::DeviceBuffer<std::int32_t> device_counts_;
  cuda::DeviceBuffer<std::int32_t> device_tokens_;
  std::vector<double> ref_;
};

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  return std::make_unique<GroupedGemmGatherCase>(op, options);
}

struct Sizes {
  std::int64_t rows;
  std::int64_t n;
  std::int64_t k;
  std::int64_t groups;
  std::int64_t active;
  std::int64_t tokens;
};

KernelOp op(const Sizes& sizes, const Dims& variants = {}) {
  KernelOp op{.kernel = "grouped_gemm_gather",
              .dtype = DType::kBf16,
              .dims = {{"rows", sizes.rows},
                       {"n", sizes.n},
                       {"k", sizes.k},
                       {"groups", sizes.groups},
                       {"active", sizes.active},
                       {"tokens", sizes.tokens}}};
  op.dims.insert(op.dims.end(), variants.begin(), variants.end());
  return op;
}

// Of each kind of tiles: one row; no row; rows around the widths of tiles, of one token, of one row
// for each token and of eight; ends of rows within 128 bytes; n that the copy engine does not
// write; groups without rows; counts that cannot be; several rounds of tiles, the last cut.
std::vector<KernelOp> check_ops() {
  std::vector<KernelOp> ops;
  for (const std::int64_t tile_rows : {TiledChoice{}.rows, kSwapAbChoice.rows}) {
    const auto add = [&](const Sizes& sizes, Dims variants = {}) {
      variants.push_back({"tile_rows", tile_rows});
      ops.push_back(op(sizes, variants));
    };
    const Dim weighed{"weighed", 1};
    const Dim ragged{"ragged", 1};
    add({1, 1, 8, 1, 1, 1});
    add({1, 8, 16, 1, 1, 1}, {weighed});
    add({0, 64, 64, 4, 0, 3}, {{"slack", 9}});
    for (const std::int64_t rows : {1, 16, 17, 33, 65, 97, 128, 129, 145, 160, 161, 301}) {
      add({rows, 331, 1040, 1, 1, rows});
      add({3 * rows, 264, 528, 5, 3, rows}, {weighed, {"slack", 11}});
    }
    add({300, 264, 72, 1, 1, 1}, {{"topk", 300}, weighed});
    add({100, 136, 272, 40, 13, 160}, {ragged});
    add({1003, 328, 144, 6, 6, 1100}, {ragged, weighed});
    add({800, 512, 256, 16, 16, 100}, {ragged, {"topk", 8}, {"slack", 3}});
    add({700, 264, 272, 128, 128, 350}, {{"slack", 5}});
    add({120, 328, 1040, 16, 16, 60}, {{"broken", 1}, {"slack", 40}});
    add({5000, 520, 144, 3, 3, 640}, {ragged, {"topk", 8}, weighed});
    add({2500, 520, 1032, 40, 37, 500}, {ragged, {"topk", 8}, {"slack", 100}});
    add({9000, 1032, 72, 20, 20, 1500}, {{"topk", 8}});
  }
  return ops;
}

// The first layer of the experts of Qwen3-30B-A3B (8 of 128), DeepSeek-V2-Lite (6 of 64) and
// Llama 4 Scout (1 of 16).
std::vector<KernelOp> bench_ops() {
  std::vector<KernelOp> ops;
  for (const std::int64_t tokens : {64, 2048, 8192, 16384}) {
    ops.push_back(op({8 * tokens, 1536, 2048, 128, 128, tokens}));
    ops.push_back(op({6 * tokens, 2816, 2048, 64, 64, tokens}));
  }
  ops.push_back(op({8192, 16384, 5120, 16, 16, 8192}, {{"weighed", 1}}));
  return ops;
}

std::vector<Grid> grids() {
  const auto fits = [](const Dims& dims) {
    constexpr std::int64_t kMostElements = std::int64_t{1} << 34;  // of w
    const std::int64_t groups = dim(dims, "groups");
    const std::int64_t rows = dim(dims, "rows");
    return dim(dims, "active") <= std::min(groups, rows) && dim(dims, "tokens") <= rows &&
           rows <= 8 * dim(dims, "tokens") &&
           groups * dim(dims, "n") * dim(dims, "k") <= kMostElements;
  };
  return {{.dtype = DType::kBf16,
           .axes = {{.dim = "rows", .values = {128, 1024, 16384, 65536}},
                    {.dim = "n", .values = {1536, 2816, 16384}},
                    {.dim = "k", .values = {2048, 5120}},
                    {.dim = "groups", .values = {16, 128}},
                    {.dim = "active", .values = {16, 128}, .multiple = 1},
                    {.dim = "tokens", .values = {128, 2048, 16384}}},
           .accept = fits}};
}

}  // namespace

Launch bind_grouped_gemm_gather(const BindContext& context);  // bind.cpp

GpuKernel grouped_gemm_gather_gpu() {
  return {.name = "grouped_gemm_gather",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_grouped_gemm_gather};
}

}  // namespace orrery
