#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "kernels/experts/grouped_gemm/chosen_counts.h"
#include "kernels/experts/grouped_gemm/grouped_gemm.h"
#include "kernels/experts/grouped_gemm_scatter/reference.h"
#include "kernels/harness/operand_sets.h"

namespace orrery {
namespace {

// As tokens that choose by themselves leave them; "ragged": in growing parts of 1, 2, 3, ...
std::vector<std::int32_t> make_counts(const Dims& dims) {
  const std::int64_t rows = dim(dims, "rows");
  const std::int64_t groups = dim(dims, "groups");
  const std::int64_t active = std::min(dim(dims, "active"), rows);
  return variant(dims, "ragged") == 0 ? chosen_counts(rows, groups, active)
                                      : growing_counts(rows, groups, active);
}

// Variants: "slack", rows that there is room for beyond those there are, whose x is NaN and whose
// token is none; "topk", the most rows of a token (else as many as rows need); "unweighed";
// "ragged".
template <typename T>
class GroupedGemmScatterCase final : public KernelCase {
 public:
  GroupedGemmScatterCase(const KernelOp& op, const CaseOptions& options)
      : seed_(options.seed),
        rows_(dim(op.dims, "rows")),
        tokens_(dim(op.dims, "tokens")),
        topk_(variant(op.dims, "topk", (rows_ + tokens_ - 1) / tokens_)),
        is_weighed_(variant(op.dims, "unweighed") == 0),
        shape_{.dtype = op.dtype,
               .max_rows = rows_ + variant(op.dims, "slack"),
               .n = dim(op.dims, "n"),
               .k = dim(op.dims, "k"),
               .groups = dim(op.dims, "groups")},
        plan_(shape_, {.rows = rows_, .active = dim(op.dims, "active")}),
        counts_(make_counts(op.dims)),
        row_tokens_(chosen_tokens(rows_, tokens_, topk_, options.seed)),
        x_(size(shape_.max_rows * shape_.k), options.seed, options.sets),
        w_(size(shape_.groups * shape_.n * shape_.k), options.seed + 1, options.sets),
        out_(size(tokens_ * shape_.n), options.seed + 2, options.sets,
             std::sqrt(static_cast<float>(shape_.k))),  // of the size of what is added
        weights_(size(std::max<std::int64_t>(shape_.max_rows, 1))),
        x_scale_(weights_.size()),
        w_scale_(size(shape_.groups * shape_.n)),
        device_counts_(device_copy(std::span<const std::int32_t>(counts_))),
        device_tokens_(weights_.size()) {
    row_tokens_.resize(size(shape_.max_rows), -1);
    const cuda::Stream stream;
    fill_weights(stream);
    ORRERY_CUDA(cudaMemcpyAsync(device_tokens_.get(), row_tokens_.data(),
                                row_tokens_.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice,
                                stream.get()));
    fill_uniform(stream, x_scale_.get(), x_scale_.size(), options.seed + 4, 0.5f, 1.5f);
    fill_uniform(stream, w_scale_.get(), w_scale_.size(), options.seed + 5, 0.5f, 1.5f);
    stream.synchronize();
  }

  void launch(const cuda::Stream& stream, int set) override {
    plan_.launch(stream, {.x = x_[set],
                          .w = w_[set],
                          .counts = device_counts_.get(),
                          .x_scale = kIsFp8 ? x_scale_.get() : nullptr,
                          .w_scale = kIsFp8 ? w_scale_.get() : nullptr,
                          .scatter = {.out = out_[set],
                                      .row_token = device_tokens_.get(),
                                      .row_weight = is_weighed_ ? weights_.get() : nullptr,
                                      .tokens_are_unique = topk_ <= 1}});
  }
  void reset(const cuda::Stream& stream) override {
    x_.reset(stream);
    w_.reset(stream);
    out_.reset(stream);
    fill_weights(stream);
    ORRERY_CUDA(cudaMemsetAsync(x_[0] + rows_ * shape_.k, 0xFF,
                                size((shape_.max_rows - rows_) * shape_.k) * sizeof(T),
                                stream.get()));
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    if (ref_.empty()) make_reference(stream);
    // y and each sum are rounded.
    const double bound = kBf16Bound * std::sqrt((1.0 + static_cast<double>(topk_)) / 2);
    return {difference("out", out_host(stream), ref_, bound)};
  }
  std::vector<Tile> tiles() override {
    const auto n = size(shape_.n);
    if (rows_ == 0) return {out_.tile("the last row of out", out_.count() - n, n)};
    const auto k = size(shape_.k);
    const auto last = size(row_tokens_[size(rows_ - 1)]);
    Tile written = out_.tile("64 columns of the last row's token, after", last * n,
                             std::min<std::size_t>(n, 64));
    written.is_output = true;
    std::vector<Tile> tiles{written, out_.tile("the last row's token, before", last * n, n),
                            x_.tile("the last row of x", size(rows_ - 1) * k, k),
                            w_.tile("w of the first group, which has rows", 0, n * k)};
    if (is_weighed_) {
      tiles.push_back({.what = "the last row's weight",
                       .data = weights_.get() + rows_ - 1,
                       .bytes = sizeof(float)});
    }
    return tiles;
  }
  [[nodiscard]] int num_sets() const override { return x_.num_sets(); }

 private:
  static constexpr bool kIsFp8 = sizeof(T) == 1;

  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }
  void fill_weights(const cuda::Stream& stream) {
    fill_uniform(stream, weights_.get(), weights_.size(), seed_ + 3, 0.25f, 1.0f);
  }
  [[nodiscard]] std::vector<double> out_host(const cuda::Stream& stream) const {
    return host_double(stream, out_[0], out_.count());
  }
  void make_reference(const cuda::Stream& stream) {
    const std::vector<double> weights = host_double(stream, weights_.get(), weights_.size());
    const std::vector<double> x_scale = host_double(stream, x_scale_.get(), x_scale_.size());
    const std::vector<double> w_scale = host_double(stream, w_scale_.get(), w_scale_.size());
    const auto max_rows = size(shape_.max_rows);
    reference::GroupedGemmScales scales;
    if (kIsFp8) scales = {.x = std::span(x_scale).first(max_rows), .w = w_scale};
    reference::ScatterRows rows{.tokens = row_tokens_};
    if (is_weighed_) rows.weights = std::span(weights).first(max_rows);
    ref_ = out_.made();
    reference::grouped_gemm_scatter(x_.made(), w_.made(), counts_, shape_.n, shape_.k, rows, ref_,
                                    scales);
  }

  std::uint64_t seed_;
  std::int64_t rows_;
  std::int64_t tokens_;
  std::int64_t topk_;
  bool is_weighed_;
  GroupedGemmShape shape_;
  GroupedGemmPlan plan_;
  std::vector<std::int32_t> counts_;
  std::vector<std::int32_t> row_tokens_;
  InputSets<T> x_;
  InputSets<T> w_;
  InputSets<bf16> out_;
  cuda::DeviceBuffer<float> weights_;
  cuda::DeviceBuffer<float> x_scale_;
  cuda::DeviceBuffer<float> w_scale_;
  cuda::DeviceBuffer<std::int32_t> device_counts_;
  cuda::DeviceBuffer<std::int32_t> device_tokens_;
  std::vector<double> ref_;
};

struct Sizes {
  std::int64_t rows;
  std::int64_t n;
  std::int64_t k;
  std::int64_t groups;
  std::int64_t active;
  std::int64_t tokens;
};

KernelOp op(DType dtype, const Sizes& sizes, const Dims& variants = {}) {
  KernelOp op{.kernel = "grouped_gemm_scatter",
              .dtype = dtype,
              .dims = {{"rows", sizes.rows},
                       {"n", sizes.n},
                       {"k", sizes.k},
                       {"groups", sizes.groups},
                       {"active", sizes.active},
                       {"tokens", sizes.tokens}}};
  op.dims.insert(op.dims.end(), variants.begin(), variants.end());
  return op;
}

constexpr DType kDTypes[] = {DType::kBf16, DType::kFp8};

// One row; tokens with one row, with eight and with none; rows around the tiles' and for each of
// the kernels; groups without rows; room for more rows than there are.
std::vector<KernelOp> check_ops() {
  std::vector<KernelOp> ops;
  for (const DType dtype : kDTypes) {
    const auto add = [&](const Sizes& sizes, const Dims& variants = {}) {
      ops.push_back(op(dtype, sizes, variants));
    };
    add({1, 8, 16, 1, 1, 1});
    add({0, 64, 64, 4, 0, 3}, {{"slack", 9}});
    for (const std::int64_t topk : {1, 8}) {
      for (const std::int64_t rows : {1, 16, 65, 128, 301}) {
        add({rows, 264, 528, 5, 3, rows}, {{"topk", topk}, {"slack", 11}});
      }
      add({100, 136, 272, 40, 13, 160}, {{"topk", topk}, {"ragged", 1}});
      add({1003, 328, 144, 6, 6, 1100}, {{"topk", topk}, {"ragged", 1}, {"unweighed", 1}});
    }
    add({800, 512, 256, 16, 16, 100}, {{"ragged", 1}, {"slack", 3}});
  }
  return ops;
}

// The second layer of Llama 4's experts: Scout's 16 and Maverick's 128, decode and prefill; of
// Qwen3-30B-A3B's, eight for each token.
std::vector<KernelOp> bench_ops() {
  std::vector<KernelOp> ops;
  for (const DType dtype : kDTypes) {
    for (const auto& [groups, rows] :
         {std::pair<std::int64_t, std::int64_t>{16, 8}, {128, 1}, {16, 1024}, {128, 128}}) {
      ops.push_back(op(dtype, {groups * rows, 5120, 1024, groups, groups, groups * rows}));
    }
    for (const std::int64_t tokens : {16, 2048}) {
      ops.push_back(
          op(dtype, {8 * tokens, 2048, 768, 128, std::min<std::int64_t>(8 * tokens, 82), tokens}));
    }
  }
  return ops;
}

std::vector<Grid> grids() {
  std::vector<Grid> grids;
  const auto fits = [](const Dims& dims) {
    constexpr std::int64_t kMostElements = std::int64_t{1} << 34;  // of w
    const std::int64_t groups = dim(dims, "groups");
    const std::int64_t rows = dim(dims, "rows");
    return dim(dims, "active") <= std::min(groups, rows) && dim(dims, "tokens") <= rows &&
           rows <= 8 * dim(dims, "tokens") &&
           groups * dim(dims, "n") * dim(dims, "k") <= kMostElements;
  };
  for (const DType dtype : kDTypes) {
    grids.push_back({.dtype = dtype,
                     .axes = {{.dim = "rows", .values = {1, 16, 128, 1024, 16384}},
                              {.dim = "n", .values = {2048, 5120}},
                              {.dim = "k", .values = {768, 1024, 8192}},
                              {.dim = "groups", .values = {16, 128}},
                              {.dim = "active", .values = {1, 16, 128}, .multiple = 1},
                              {.dim = "tokens", .values = {1, 16, 128, 2048, 16384}}},
                     .accept = fits});
  }
  return grids;
}

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  if (std::ranges::find(kDTypes, op.dtype) == std::end(kDTypes)) {
    throw std::invalid_argument("grouped_gemm_scatter takes bf16 and fp8, not " +
                                std::string(to_text(op.dtype)));
  }
  if (op.dtype == DType::kFp8) return std::make_unique<GroupedGemmScatterCase<fp8>>(op, options);
  return std::make_unique<GroupedGemmScatterCase<bf16>>(op, options);
}

}  // namespace

Launch bind_grouped_gemm_scatter(const BindContext& context);  // bind.cpp

GpuKernel grouped_gemm_scatter_gpu() {
  return {.name = "grouped_gemm_scatter",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_grouped_gemm_scatter};
}

}  // namespace orrery
