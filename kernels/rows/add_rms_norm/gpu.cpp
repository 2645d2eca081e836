#include "kernels/dense/quantize/activation_sets.h"
#include "kernels/rows/add_rms_norm/add_rms_norm.h"
#include "kernels/rows/add_rms_norm/reference.h"

namespace orrery {
namespace {

class AddRmsNormCase final : public KernelCase {
 public:
  AddRmsNormCase(const KernelOp& op, const CaseOptions& options)
      : tokens_(dim(op.dims, "tokens")),
        hidden_(dim(op.dims, "hidden")),
        residual_(count(), options.seed, options.sets),
        x_(count(), options.seed + 1, options.sets),
        weight_(static_cast<std::size_t>(hidden_), options.seed + 2, options.sets),
        y_(activation_format(op), tokens_, hidden_, options.sets),
        sets_(options.sets) {}

  void launch(const cuda::Stream& stream, int set) override {
    switch (y_.format()) {
      case ActivationFormat::kBf16:
        return add_rms_norm(stream, residual_[set], x_[set], weight_[set], y_.y(set), tokens_,
                            hidden_);
      case ActivationFormat::kFp8Static:
        return add_rms_norm_fp8_static(stream, residual_[set], x_[set], weight_[set], y_.y_fp8(set),
                                       ActivationSets::kStaticScale, tokens_, hidden_);
      default:
        return add_rms_norm_fp8(stream, residual_[set], x_[set], weight_[set], y_.y_fp8(set),
                                y_.scales(set), tokens_, hidden_);
    }
  }
  void reset(const cuda::Stream& stream) override {
    residual_.reset(stream);
    x_.reset(stream);
    weight_.reset(stream);
    y_.reset(stream);
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    const auto ref =
        reference::add_rms_norm(residual_.made(), x_.made(), weight_.made(), NormOptions{}.epsilon);
    auto all = y_.differences(stream, ref.y);
    all.push_back(difference("residual", host_double(stream, residual_[0], count()), ref.residual,
                             kBf16Bound));
    return all;
  }
  std::vector<Tile> tiles() override {
    const auto hidden = static_cast<std::size_t>(hidden_);
    const std::size_t row = static_cast<std::size_t>(tokens_ / 2) * hidden;
    Tile residual = residual_.tile("a row of the residual", row, hidden);
    residual.is_output = true;
    return {y_.tile(), residual, x_.tile("a row of x", row, hidden),
            weight_.tile("1,024 weights", 0, 1024)};
  }
  [[nodiscard]] int num_sets() const override { return sets_; }

 private:
  [[nodiscard]] std::size_t count() const { return static_cast<std::size_t>(tokens_ * hidden_); }

  std::int64_t tokens_;
  std::int64_t hidden_;
  InputSets<bf16> residual_;
  InputSets<bf16> x_;
  InputSets<bf16> weight_;
  ActivationSets y_;
  int sets_;
};

KernelOp op(DType dtype, std::int64_t tokens, std::int64_t hidden) {
  return {
      .kernel = "add_rms_norm", .dtype = dtype, .dims = {{"tokens", tokens}, {"hidden", hidden}}};
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
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
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
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    for (const std::int64_t tokens : {1, 64, 256, 4096, 16384}) {
      for (const std::int64_t hidden : {4096, 8192}) ops.push_back(op(dtype, tokens, hidden));
    }
  }
  ops.push_back(static_op(16384, 8192));
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
  return std::make_unique<AddRmsNormCase>(op, options);
}

}  // namespace

Launch bind_add_rms_norm(const BindContext& context);  // bind.cpp

GpuKernel add_rms_norm_gpu() {
  return {.name = "add_rms_norm",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_add_rms_norm};
}

}  // namespace orrery
