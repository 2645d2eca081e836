#include <stdexcept>

#include "kernels/dense/quantize/activation_sets.h"
#include "kernels/rows/rms_norm/reference.h"
#include "kernels/rows/rms_norm/rms_norm.h"

namespace orrery {
namespace {

// The variant "x_stride": x ends rows of so many elements.
class RmsNormCase final : public KernelCase {
 public:
  RmsNormCase(const KernelOp& op, const CaseOptions& options)
      : tokens_(dim(op.dims, "tokens")),
        hidden_(dim(op.dims, "hidden")),
        options_{.x_stride = variant(op.dims, "x_stride", hidden_)},
        x_(static_cast<std::size_t>(tokens_ * options_.x_stride), options.seed, options.sets),
        weight_(static_cast<std::size_t>(hidden_), options.seed + 1, options.sets),
        y_(activation_format(op), tokens_, hidden_, options.sets),
        sets_(options.sets) {}

  void launch(const cuda::Stream& stream, int set) override {
    const bf16* const x = x_[set] + offset();
    switch (y_.format()) {
      case ActivationFormat::kBf16:
        return rms_norm(stream, x, weight_[set], y_.y(set), tokens_, hidden_, options_);
      case ActivationFormat::kFp8Static:
        return rms_norm_fp8_static(stream, x, weight_[set], y_.y_fp8(set),
                                   ActivationSets::kStaticScale, tokens_, hidden_, options_);
      default:
        return rms_norm_fp8(stream, x, weight_[set], y_.y_fp8(set), y_.scales(set), tokens_,
                            hidden_, options_);
    }
  }
  void reset(const cuda::Stream& stream) override {
    x_.reset(stream);
    weight_.reset(stream);
    y_.reset(stream);
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    const std::vector<double> x =
        columns_of(x_.made(), static_cast<std::size_t>(options_.x_stride),
                   static_cast<std::size_t>(offset()), static_cast<std::size_t>(hidden_));
    return y_.differences(stream, reference::rms_norm(x, weight_.made(), options_.epsilon));
  }
  std::vector<Tile> tiles() override {
    const auto hidden = static_cast<std::size_t>(hidden_);
    return {y_.tile(),
            x_.tile("a row of x",
                    static_cast<std::size_t>(tokens_ / 2 * options_.x_stride + offset()), hidden),
            weight_.tile("1,024 weights", 0, 1024)};
  }
  [[nodiscard]] int num_sets() const override { return sets_; }

 private:
  [[nodiscard]] std::int64_t offset() const { return options_.x_stride - hidden_; }

  std::int64_t tokens_;
  std::int64_t hidden_;
  NormOptions options_;
  InputSets<bf16> x_;
  InputSets<bf16> weight_;
  ActivationSets y_;
  int sets_;
};

// The variant "head_dim": heads of so many elements, normed each by itself and in place; one in
// five, rounded up, is a key head. As in the rows of a fused projection, as many values follow.
class HeadNormCase final : public KernelCase {
 public:
  HeadNormCase(const KernelOp& op, const CaseOptions& options)
      : shape_(shape_of(op)),
        width_(dim(op.dims, "hidden")),
        x_(static_cast<std::size_t>(shape_.tokens * shape_.stride), options.seed, options.sets),
        weight_(static_cast<std::size_t>(2 * shape_.head_dim), options.seed + 1, options.sets) {
    if (op.dtype != DType::kBf16) throw std::invalid_argument("rms_norm of heads takes bf16 only");
  }

  void launch(const cuda::Stream& stream, int set) override {
    rms_norm_heads(stream, x_[set], weight_[set], shape_);
  }
  void reset(const cuda::Stream& stream) override {
    x_.reset(stream);
    weight_.reset(stream);
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    const std::vector<double> made = x_.made();
    const std::vector<double> found = host_double(stream, x_[0], x_.count());
    const auto stride = static_cast<std::size_t>(shape_.stride);
    const auto head_dim = static_cast<std::size_t>(shape_.head_dim);
    const auto part = [&](const char* what, std::size_t offset, std::int64_t heads,
                          std::size_t gain) {
      const std::size_t width = static_cast<std::size_t>(heads) * head_dim;
      const std::vector<double> weights = weight_.made();
      return difference(what, columns_of(found, stride, offset, width),
                        reference::rms_norm(columns_of(made, stride, offset, width),
                                            std::span(weights).subspan(gain * head_dim, head_dim),
                                            NormOptions{}.epsilon),
                        kBf16Bound);
    };
    const auto width = static_cast<std::size_t>(width_);
    const std::size_t queries = static_cast<std::size_t>(shape_.query_heads) * head_dim;
    return {part("queries", 0, shape_.query_heads, 0), part("keys", queries, shape_.key_heads, 1),
            difference("values", columns_of(found, stride, width, stride - width),
                       columns_of(made, stride, width, stride - width), 0)};
  }
  std::vector<Tile> tiles() override {
    const auto head_dim = static_cast<std::size_t>(shape_.head_dim);
    Tile token =
        x_.tile("heads of a token", static_cast<std::size_t>(shape_.tokens / 2 * shape_.stride),
                static_cast<std::size_t>(width_));
    token.is_output = true;
    return {token, weight_.tile("the gain of queries", 0, head_dim),
            weight_.tile("the gain of keys", head_dim, head_dim)};
  }
  [[nodiscard]] int num_sets() const override { return x_.num_sets(); }

 private:
  static HeadNormShape shape_of(const KernelOp& op) {
    constexpr std::int64_t kHeadsPerKey = 5;
    const std::int64_t head_dim = variant(op.dims, "head_dim");
    const std::int64_t heads = dim(op.dims, "hidden") / head_dim;
    const std::int64_t keys = (heads + kHeadsPerKey - 1) / kHeadsPerKey;
    return {.tokens = dim(op.dims, "tokens"),
            .query_heads = heads - keys,
            .key_heads = keys,
            .head_dim = head_dim,
            .stride = (heads + keys) * head_dim};
  }

  HeadNormShape shape_;
  std::int64_t width_;
  InputSets<bf16> x_;
  InputSets<bf16> weight_;
};

KernelOp op(DType dtype, std::int64_t tokens, std::int64_t hidden) {
  return {.kernel = "rms_norm", .dtype = dtype, .dims = {{"tokens", tokens}, {"hidden", hidden}}};
}
KernelOp static_op(std::int64_t tokens, std::int64_t hidden) {
  KernelOp result = op(DType::kFp8, tokens, hidden);
  result.dims.push_back({"static_scale", 1});
  return result;
}

KernelOp strided_op(DType dtype, std::int64_t tokens, std::int64_t hidden, std::int64_t stride) {
  KernelOp result = op(dtype, tokens, hidden);
  result.dims.push_back({"x_stride", stride});
  return result;
}

KernelOp heads_op(std::int64_t tokens, std::int64_t heads, std::int64_t head_dim) {
  KernelOp result = op(DType::kBf16, tokens, heads * head_dim);
  result.dims.push_back({"head_dim", head_dim});
  return result;
}

// One element; odd widths (the scalar path); a warp per row; each number of vectors per thread,
// just over a warp and over a block; few rows and many; rows that do not fill the last round.
std::vector<KernelOp> check_ops() {
  std::vector<KernelOp> ops;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    ops.insert(ops.end(),
               {op(dtype, 1, 1), op(dtype, 3, 2731), op(dtype, 1, 8), op(dtype, 5, 264),
                op(dtype, 301, 1032), op(dtype, 7, 4104), op(dtype, 2, 8200), op(dtype, 3, 16392),
                op(dtype, 2, 32768), op(dtype, 1, 32776), op(dtype, 1999, 128),
                op(dtype, 1201, 2056), op(dtype, 313, 8192), op(dtype, 267, 20480)});
  }
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    ops.insert(ops.end(), {strided_op(dtype, 37, 512, 2112), strided_op(dtype, 5, 512, 579)});
  }
  ops.insert(ops.end(), {static_op(3, 2731), static_op(301, 1032), static_op(7, 8192)});
  for (const std::int64_t head_dim : {64, 128, 256}) {
    ops.insert(ops.end(), {heads_op(1, 2, head_dim), heads_op(3, 5, head_dim),
                           heads_op(331, 40, head_dim), heads_op(64, 72, head_dim)});
  }
  return ops;
}
std::vector<KernelOp> bench_ops() {
  std::vector<KernelOp> ops;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    for (const std::int64_t tokens : {1, 64, 256, 4096, 16384}) {
      for (const std::int64_t hidden : {4096, 8192}) ops.push_back(op(dtype, tokens, hidden));
    }
  }
  ops.push_back(static_op(16384, 8192));
  for (const std::int64_t tokens : {1, 64, 8192}) ops.push_back(heads_op(tokens, 40, 128));
  return ops;
}

std::vector<Grid> grids() {
  std::vector<Grid> all;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    all.push_back({.dtype = dtype,
                   .axes = {{.dim = "tokens", .values = {1, 16, 256, 1024, 4096, 32768}},
                            {.dim = "hidden", .values = {1024, 2048, 4096, 8192, 16384}}}});
  }
  return all;
}

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  if (variant(op.dims, "head_dim") > 0) return std::make_unique<HeadNormCase>(op, options);
  return std::make_unique<RmsNormCase>(op, options);
}

}  // namespace

Launch bind_rms_norm(const BindContext& context);  // bind.cpp

GpuKernel rms_norm_gpu() {
  return {.name = "rms_norm",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_rms_norm};
}

}  // namespace orrery
