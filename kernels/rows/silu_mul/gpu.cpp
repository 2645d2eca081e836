#include <algorithm>
#include <array>

#include "kernels/dense/quantize/activation_sets.h"
#include "kernels/harness/rounding.h"
#include "kernels/rows/silu_mul/reference.h"
#include "kernels/rows/silu_mul/silu_mul.h"

namespace orrery {
namespace {

// Variants: "static_scale"; "bound", how many rows there is room for where
// their number is read from the device.
class SiluMulCase final : public KernelCase {
 public:
  SiluMulCase(const KernelOp& op, const CaseOptions& options)
      : tokens_(dim(op.dims, "tokens")),
        ffn_(dim(op.dims, "ffn")),
        bound_(variant(op.dims, "bound")),
        spare_(std::max(bound_ - tokens_, std::int64_t{0})),
        x_(static_cast<std::size_t>(2 * (tokens_ + spare_) * ffn_), options.seed, options.sets),
        y_(activation_format(op), tokens_, ffn_, options.sets, spare_),
        count_(device_copy<std::int32_t>(std::array{static_cast<std::int32_t>(tokens_)})),
        num_rows_(bound_ > 0 ? count_.get() : nullptr),
        sets_(options.sets) {}

  void launch(const cuda::Stream& stream, int set) override {
    switch (y_.format()) {
      case ActivationFormat::kBf16:
        return silu_mul(stream, x_[set], y_.y(set), tokens_ + spare_, ffn_, num_rows_);
      case ActivationFormat::kFp8Static:
        return silu_mul_fp8_static(stream, x_[set], y_.y_fp8(set), ActivationSets::kStaticScale,
                                   tokens_, ffn_);
      default:
        return silu_mul_fp8(stream, x_[set], y_.y_fp8(set), y_.scales(set), tokens_ + spare_, ffn_,
                            num_rows_);
    }
  }
  void reset(const cuda::Stream& stream) override {
    x_.reset(stream);
    y_.reset(stream);
    stream.synchronize();
  }
  // The scales are those of values that the kernel has rounded to bf16 already.
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    std::vector<double> x = x_.made();
    x.resize(static_cast<std::size_t>(2 * tokens_ * ffn_));
    const auto ref = reference::silu_mul(x, static_cast<std::size_t>(ffn_));
    return y_.differences(stream, ref, kBf16Bound);
  }
  std::vector<Tile> tiles() override {
    const auto row = static_cast<std::size_t>(2 * ffn_);
    return {y_.tile(), x_.tile("a row of x", static_cast<std::size_t>(tokens_ / 2) * row, row)};
  }
  [[nodiscard]] int num_sets() const override { return sets_; }

 private:
  std::int64_t tokens_;
  std::int64_t ffn_;
  std::int64_t bound_;
  std::int64_t spare_;  // rows past the count
  InputSets<bf16> x_;
  ActivationSets y_;
  cuda::DeviceBuffer<std::int32_t> count_;
  const std::int32_t* num_rows_;  // null: known on the host
  int sets_;
};

KernelOp op(DType dtype, std::int64_t tokens, std::int64_t hidden) {
  return {.kernel = "silu_mul", .dtype = dtype, .dims = {{"tokens", tokens}, {"ffn", hidden}}};
}
KernelOp static_op(std::int64_t tokens, std::int64_t hidden) {
  KernelOp result = op(DType::kFp8, tokens, hidden);
  result.dims.push_back({"static_scale", 1});
  return result;
}

KernelOp counted_op(DType dtype, std::int64_t tokens, std::int64_t hidden, std::int64_t bound) {
  KernelOp result = op(dtype, tokens, hidden);
  result.dims.push_back({"bound", bound});
  return result;
}

// One element; odd widths (the scalar path); a warp per row; each number of vectors per thread,
// just over a warp and over a block; few rows and many; rows that do not fill the last round.
// Counted: more rows than fill the machine at once, too.
std::vector<KernelOp> check_ops() {
  std::vector<KernelOp> ops;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    ops.insert(ops.end(),
               {op(dtype, 1, 1), op(dtype, 3, 2731), op(dtype, 1, 8), op(dtype, 5, 264),
                op(dtype, 301, 1032), op(dtype, 7, 4104), op(dtype, 2, 8200), op(dtype, 3, 16392),
                op(dtype, 2, 32768), op(dtype, 1, 32776), op(dtype, 1999, 128),
                op(dtype, 1201, 2056), op(dtype, 313, 8192), op(dtype, 267, 20480)});
    ops.insert(ops.end(), {counted_op(dtype, 1, 1, 1), counted_op(dtype, 3, 2731, 5),
                           counted_op(dtype, 5, 264, 40), counted_op(dtype, 301, 1032, 2408),
                           counted_op(dtype, 1, 32776, 2), counted_op(dtype, 9001, 128, 9001),
                           counted_op(dtype, 701, 8192, 702), counted_op(dtype, 267, 20480, 300)});
  }
  ops.insert(ops.end(), {static_op(3, 2731), static_op(301, 1032), static_op(7, 8192)});
  return ops;
}
std::vector<KernelOp> bench_ops() {
  std::vector<KernelOp> ops;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    for (const std::int64_t tokens : {1, 64, 256, 4096, 16384}) {
      for (const std::int64_t hidden : {8192, 14336}) ops.push_back(op(dtype, tokens, hidden));
    }
  }
  ops.push_back(static_op(16384, 14336));
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    ops.push_back(counted_op(dtype, 128, 8192, 8192));
    ops.push_back(counted_op(dtype, 128, 1024, 65536));
    for (const std::int64_t hidden : {1024, 8192}) {
      for (const std::int64_t tokens : {1, 128, 1024, 16384}) {
        ops.push_back(op(dtype, tokens, hidden));
        ops.push_back(counted_op(dtype, tokens, hidden, tokens));
      }
    }
  }
  return ops;
}

std::vector<Grid> grids() {
  std::vector<Grid> all;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    all.push_back({.dtype = dtype,
                   .axes = {{.dim = "tokens", .values = {1, 16, 256, 1024, 4096, 32768}},
                            {.dim = "ffn", .values = {1024, 2048, 4096, 8192, 14336, 28672}}}});
  }
  return all;
}

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  return std::make_unique<SiluMulCase>(op, options);
}

}  // namespace

Launch bind_silu_mul(const BindContext& context);  // bind.cpp

GpuKernel silu_mul_gpu() {
  return {.name = "silu_mul",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_silu_mul};
}

}  // namespace orrery
