#include <algorithm>
#include <array>

#include "kernels/dense/quantize/activation_sets.h"
#include "kernels/experts/gather_mul/gather_mul.h"
#include "kernels/experts/gather_mul/made_rows.h"
#include "kernels/experts/gather_mul/reference.h"

namespace orrery {
namespace {

constexpr std::int64_t kExperts = 16;

// Variants: "weighed"; "bound", how many rows there is room for; "one_expert", all rows of one;
// "experts" of the padded layout, whose rows
// are experts times the capacity, and then "topk".
class GatherMulCase final : public KernelCase {
 public:
  GatherMulCase(const KernelOp& op, const CaseOptions& options)
      : tokens_(dim(op.dims, "tokens")),
        rows_(dim(op.dims, "rows")),
        hidden_(dim(op.dims, "hidden")),
        experts_(variant(op.dims, "experts")),
        topk_(variant(op.dims, "topk", 1)),
        one_expert_(variant(op.dims, "one_expert") != 0),
        weighed_(variant(op.dims, "weighed") != 0),
        spare_(std::max(variant(op.dims, "bound") - rows_, std::int64_t{0})),
        varies_(options.vary),
        x_(static_cast<std::size_t>(tokens_ * hidden_), options.seed, options.sets),
        weights_(static_cast<std::size_t>(made_rows() + spare_), options.seed + 1, options.sets),
        y_(activation_format(op), rows_, hidden_, options.sets, spare_) {
    for (int set = 0; set < options.sets; ++set) {
      const MadeRows made = make(set);
      row_token_.push_back(device_copy<std::int32_t>(made.row_token));
      counts_.push_back(device_copy<std::int32_t>(made.counts));
      num_rows_.push_back(
          device_copy<std::int32_t>(std::array{static_cast<std::int32_t>(made_rows())}));
    }
  }

  void launch(const cuda::Stream& stream, int set) override {
    const auto at = static_cast<std::size_t>(set);
    const bool padded = experts_ > 0;
    const GatheredTokens from{.x = x_[set],
                              .row_token = row_token_[at].get(),
                              .row_weight = weighed_ ? weights_[set] : nullptr,
                              .num_rows = padded ? nullptr : num_rows_[at].get(),
                              .counts = padded ? counts_[at].get() : nullptr,
                              .tokens = tokens_,
                              .rows = made_rows() + spare_,
                              .hidden = hidden_,
                              .experts = experts_,
                              .capacity = padded ? rows_ / experts_ : 0};
    if (y_.format() == ActivationFormat::kBf16) return gather_mul(stream, from, y_.y(set));
    gather_mul_fp8(stream, from, y_.y_fp8(set), y_.scales(set));
  }
  void reset(const cuda::Stream& stream) override {
    x_.reset(stream);
    y_.reset(stream);
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    MadeRows made = make(0);
    made.row_token.resize(static_cast<std::size_t>(made_rows()));
    const auto hidden = static_cast<std::size_t>(hidden_);
    std::vector<double> weights;
    if (weighed_) {
      weights = weights_.made();
      weights.resize(static_cast<std::size_t>(made_rows()));
    }
    std::vector<double> ref = reference::gather_mul(x_.made(), made.row_token, weights, hidden);
    if (experts_ > 0) {
      ref = reference::padded_groups(ref, made.counts, static_cast<std::size_t>(rows_ / experts_),
                                     hidden);
    }
    return y_.differences(stream, ref);
  }
  std::vector<Tile> tiles() override {
    if (rows_ == 0) return {};
    const auto hidden = static_cast<std::size_t>(hidden_);
    const auto token = static_cast<std::size_t>(make(0).row_token[0]);
    return {y_.tile(), x_.tile("a row of x", token * hidden, hidden)};
  }
  [[nodiscard]] int num_sets() const override { return x_.num_sets(); }

 private:
  [[nodiscard]] std::int64_t made_rows() const { return experts_ > 0 ? tokens_ * topk_ : rows_; }
  // In checks with tokens that are not there: one of the rows, the last, and all past the count.
  [[nodiscard]] MadeRows make(int set) const {
    MadeRows made = make_rows({.tokens = tokens_,
                               .rows = made_rows(),
                               .experts = experts_ > 0 ? experts_ : kExperts,
                               .one_expert = one_expert_},
                              static_cast<std::uint64_t>(set) + 1);
    if (varies_ && made.row_token.size() > 2) {
      made.row_token[1] = -1;
      made.row_token.back() = static_cast<std::int32_t>(tokens_);
    }
    made.row_token.resize(made.row_token.size() + static_cast<std::size_t>(spare_), 0);
    return made;
  }

  std::int64_t tokens_;
  std::int64_t rows_;
  std::int64_t hidden_;
  std::int64_t experts_;
  std::int64_t topk_;
  bool one_expert_;
  bool weighed_;
  std::int64_t spare_;  // rows past the count
  bool varies_;
  InputSets<bf16> x_;
  InputSets<float> weights_;
  ActivationSets y_;
  std::vector<cuda::DeviceBuffer<std::int32_t>> row_token_;
  std::vector<cuda::DeviceBuffer<std::int32_t>> counts_;
  std::vector<cuda::DeviceBuffer<std::int32_t>> num_rows_;
};

KernelOp op(DType dtype, std::int64_t tokens, std::int64_t rows, std::int64_t hidden,
            std::vector<Dim> variants = {}) {
  KernelOp result{.kernel = "gather_mul",
                  .dtype = dtype,
                  .dims = {{"tokens", tokens}, {"rows", rows}, {"hidden", hidden}}};
  result.dims.insert(result.dims.end(), variants.begin(), variants.end());
  return result;
}

// One element; no rows; odd widths (the scalar path); fewer rows than tokens (other ranks have
// them), several for each token; more rows than fill the machine at once; each layout weighed and
// not, with experts that have no rows and with all rows in one.
std::vector<KernelOp> check_ops() {
  std::vector<KernelOp> ops;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    const Dim weighed{"weighed", 1};
    const Dim one{"one_expert", 1};
    ops.insert(
        ops.end(),
        {op(dtype, 1, 1, 1), op(dtype, 5, 0, 64), op(dtype, 5, 0, 64, {{"bound", 9}}),
         op(dtype, 3, 3, 2731, {weighed, {"bound", 4}}), op(dtype, 7, 56, 8),
         op(dtype, 129, 129, 5120, {{"bound", 200}}),
         op(dtype, 300, 75, 264, {weighed, {"bound", 2400}}),
         op(dtype, 1001, 2002, 1032, {weighed}), op(dtype, 17, 17, 40, {one}),
         op(dtype, 3000, 12000, 128, {{"bound", 12001}}), op(dtype, 1103, 1103, 5128, {weighed}),
         op(dtype, 3, 6, 32768), op(dtype, 2, 2, 32776), op(dtype, 1, 16, 64, {{"experts", 16}}),
         op(dtype, 33, 4224, 72, {{"experts", 128}, {"topk", 4}, weighed}),
         op(dtype, 40, 75, 5120, {{"experts", 3}, one}),
         op(dtype, 9, 4608, 7, {{"experts", 512}, {"topk", 8}, weighed})});
  }
  return ops;
}
std::vector<KernelOp> bench_ops() {
  std::vector<KernelOp> ops;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    for (const std::int64_t tokens : {1, 64, 128, 1024, 4096, 16384}) {
      ops.push_back(op(dtype, tokens, tokens, 5120));
    }
    ops.push_back(op(dtype, 16384, 16384, 5120, {{"weighed", 1}}));
    ops.push_back(op(dtype, 2048, 16384, 7168));
    ops.push_back(op(dtype, 128, 128, 5120, {{"bound", 8192}}));
    ops.push_back(op(dtype, 128, 128, 5120, {{"bound", 65536}}));
    ops.push_back(op(dtype, 16384, 16384, 2048));
  }
  ops.push_back(op(DType::kBf16, 1024, 16384, 5120, {{"experts", 16}}));
  return ops;
}

bool has_rows(const Dims& dims) { return dim(dims, "rows") <= 8 * dim(dims, "tokens"); }

std::vector<Grid> grids() {
  std::vector<Grid> all;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    all.push_back({.dtype = dtype,
                   .axes = {{.dim = "tokens", .values = {1, 16, 256, 4096, 32768}},
                            {.dim = "rows", .values = {1, 16, 256, 4096, 32768, 131072}},
                            {.dim = "hidden", .values = {1024, 2048, 4096, 5120, 7168}}},
                   .accept = has_rows});
  }
  return all;
}

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  return std::make_unique<GatherMulCase>(op, options);
}

}  // namespace

Launch bind_gather_mul(const BindContext& context);  // bind.cpp

GpuKernel gather_mul_gpu() {
  return {.name = "gather_mul",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_gather_mul};
}

}  // namespace orrery
