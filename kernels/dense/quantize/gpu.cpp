#include <stdexcept>

#include "kernels/dense/quantize/activation_sets.h"
#include "kernels/dense/quantize/quantize.h"

namespace orrery {
namespace {

class QuantizeCase final : public KernelCase {
 public:
  QuantizeCase(const KernelOp& op, const CaseOptions& options)
      : tokens_(dim(op.dims, "tokens")),
        hidden_(dim(op.dims, "hidden")),
        x_(static_cast<std::size_t>(tokens_ * hidden_), options.seed, options.sets),
        y_(activation_format(op, true), tokens_, hidden_, options.sets),
        sets_(options.sets) {
    if (y_.format() == ActivationFormat::kBf16) {
      throw std::invalid_argument("quantize takes fp8 (rowwise or static_scale) and fp8_block");
    }
  }

  void launch(const cuda::Stream& stream, int set) override {
    switch (y_.format()) {
      case ActivationFormat::kFp8Block:
        return quantize_blocks(stream, x_[set], y_.y_fp8(set), y_.scales(set), tokens_, hidden_);
      case ActivationFormat::kFp8Static:
        return quantize_static(stream, x_[set], y_.y_fp8(set), ActivationSets::kStaticScale,
                               tokens_, hidden_);
      default:
        return quantize_rowwise(stream, x_[set], y_.y_fp8(set), y_.scales(set), tokens_, hidden_);
    }
  }
  void reset(const cuda::Stream& stream) override {
    x_.reset(stream);
    y_.reset(stream);
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    return y_.differences(stream, x_.made());
  }
  std::vector<Tile> tiles() override {
    const auto row = static_cast<std::size_t>(hidden_);
    return {y_.tile(), x_.tile("a row of x", static_cast<std::size_t>(tokens_ / 2) * row, row)};
  }
  [[nodiscard]] int num_sets() const override { return sets_; }

 private:
  std::int64_t tokens_;
  std::int64_t hidden_;
  InputSets<bf16> x_;
  ActivationSets y_;
  int sets_;
};

KernelOp op(DType dtype, std::int64_t tokens, std::int64_t hidden) {
  return {.kernel = "quantize", .dtype = dtype, .dims = {{"tokens", tokens}, {"hidden", hidden}}};
}
KernelOp static_op(std::int64_t tokens, std::int64_t hidden) {
  KernelOp result = op(DType::kFp8, tokens, hidden);
  result.dims.push_back({"static_scale", 1});
  return result;
}

// One element; odd widths (the scalar path); a warp per row; each number of vectors per thread,
// just over a warp and over a block; few rows and many; rows that do not fill the last round.
std::vector<KernelOp> check_ops() {
  std::vector<KernelOp> ops;
  for (const DType dtype : {DType::kFp8, DType::kFp8Block}) {
    ops.insert(ops.end(),
               {op(dtype, 1, 1), op(dtype, 3, 2731), op(dtype, 1, 8), op(dtype, 5, 264),
                op(dtype, 301, 1032), op(dtype, 7, 4104), op(dtype, 2, 8200), op(dtype, 3, 16392),
                op(dtype, 2, 32768), op(dtype, 1, 32776), op(dtype, 1999, 128),
                op(dtype, 1201, 2056), op(dtype, 313, 8192), op(dtype, 267, 20480)});
  }
  ops.insert(ops.end(), {static_op(3, 2731), static_op(301, 1032), static_op(7, 8192)});
  return ops;
}
std::vector<KernelOp> bench_ops() {
  std::vector<KernelOp> ops;
  for (const DType dtype : {DType::kFp8, DType::kFp8Block}) {
    for (const std::int64_t tokens : {1, 64, 256, 4096, 16384}) {
      for (const std::int64_t hidden : {4096, 8192}) ops.push_back(op(dtype, tokens, hidden));
    }
  }
  ops.push_back(static_op(16384, 8192));
  return ops;
}

std::vector<Grid> grids() {
  std::vector<Grid> all;
  for (const DType dtype : {DType::kFp8, DType::kFp8Block}) {
    all.push_back({.dtype = dtype,
                   .axes = {{.dim = "tokens", .values = {1, 16, 256, 1024, 4096, 32768}},
                            {.dim = "hidden", .values = {1024, 2048, 4096, 8192, 16384}}}});
  }
  return all;
}

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  return std::make_unique<QuantizeCase>(op, options);
}

}  // namespace

Launch bind_quantize(const BindContext& context);  // bind.cpp

GpuKernel quantize_gpu() {
  return {.name = "quantize",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_quantize};
}

}  // namespace orrery
