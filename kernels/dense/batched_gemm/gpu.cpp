#include <stdexcept>

#include "kernels/dense/batched_gemm/batched_gemm.h"
#include "kernels/dense/batched_gemm/reference.h"
#include "kernels/harness/operand_sets.h"

namespace orrery {
namespace {

// Variants: "transposed", weights [k, n] of a head; "head_stride", elements from head to head of x,
// which begin what lies there; "by_matrix", batches of matrices in place of heads of rows, as those
// of fp8 always are. T is bf16 or fp8.
template <typename T>
class BatchedGemmCase final : public KernelCase {
 public:
  BatchedGemmCase(const BatchedGemmShape& shape, const CaseOptions& options)
      : shape_(shape),
        plan_(shape),
        stride_(shape.x_head_stride == 0 ? shape.k : shape.x_head_stride),
        x_(static_cast<std::size_t>(shape.m * shape.batch * stride_), options.seed, options.sets),
        w_(static_cast<std::size_t>(shape.batch * shape.n * shape.k), options.seed + 1,
           options.sets),
        x_scale_(static_cast<std::size_t>(shape.batch * shape.m), options.seed + 2, 1),
        w_scale_(static_cast<std::size_t>(shape.batch * shape.n), options.seed + 3, 1),
        y_(static_cast<std::size_t>(shape.m * shape.batch * shape.n), options.sets) {}

  void launch(const cuda::Stream& stream, int set) override {
    plan_.launch(stream, {.x = x_[set],
                          .w = w_[set],
                          .y = y_[set],
                          .x_scale = kIsFp8 ? x_scale_[0] : nullptr,
                          .w_scale = kIsFp8 ? w_scale_[0] : nullptr});
  }
  void reset(const cuda::Stream& stream) override {
    x_.reset(stream);
    w_.reset(stream);
    y_.reset(stream);
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    if (ref_.empty()) {
      const std::vector<double> x = columns_of(x_.made(), static_cast<std::size_t>(stride_), 0,
                                               static_cast<std::size_t>(shape_.k));
      ref_ = reference::batched_gemm(x, w_.made(),
                                     {.batch = shape_.batch,
                                      .m = shape_.m,
                                      .n = shape_.n,
                                      .k = shape_.k,
                                      .w_is_transposed = shape_.w_is_transposed,
                                      .is_by_matrix = shape_.is_by_matrix});
      if constexpr (kIsFp8) scale(ref_);
    }
    return {difference("y", y_.host(stream), ref_, kBf16Bound)};
  }
  std::vector<Tile> tiles() override {
    const auto n = static_cast<std::size_t>(shape_.n);
    const auto k = static_cast<std::size_t>(shape_.k);
    const auto stride = static_cast<std::size_t>(stride_);
    return {y_.tile("a head of the first row", 0, n),
            x_.tile("the last head of the last row", x_.count() - stride, k),
            w_.tile("weights of the last head", w_.count() - n * k, n * k)};
  }
  [[nodiscard]] int num_sets() const override { return x_.num_sets(); }

 private:
  static constexpr bool kIsFp8 = sizeof(T) == 1;

  // y [batch, m, n] by the scales of its row and column.
  void scale(std::vector<double>& y) const {
    const std::vector<double> of_rows = x_scale_.made();
    const std::vector<double> of_columns = w_scale_.made();
    for (std::size_t i = 0; i < y.size(); ++i) {
      const auto row = i / static_cast<std::size_t>(shape_.n);
      const auto batch = row / static_cast<std::size_t>(shape_.m);
      const auto n = static_cast<std::size_t>(shape_.n);
      y[i] *= of_rows[row] * of_columns[batch * n + i % n];
    }
  }

  BatchedGemmShape shape_;
  BatchedGemmPlan plan_;
  std::int64_t stride_;  // elements from head to head, or row to row
  InputSets<T> x_;
  InputSets<T> w_;
  InputSets<float> x_scale_;
  InputSets<float> w_scale_;
  OutputSets<bf16> y_;
  std::vector<double> ref_;
};

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  const bool is_fp8 = op.dtype == DType::kFp8;
  const BatchedGemmShape shape{.dtype = op.dtype,
                               .batch = dim(op.dims, "batch"),
                               .m = dim(op.dims, "m"),
                               .n = dim(op.dims, "n"),
                               .k = dim(op.dims, "k"),
                               .w_is_transposed = variant(op.dims, "transposed") != 0,
                               .x_head_stride = variant(op.dims, "head_stride"),
                               .is_by_matrix = is_fp8 || variant(op.dims, "by_matrix") != 0};
  if (is_fp8) return std::make_unique<BatchedGemmCase<fp8>>(shape, options);
  return std::make_unique<BatchedGemmCase<bf16>>(shape, options);
}

KernelOp op(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.kernel = "batched_gemm",
          .dtype = DType::kBf16,
          .dims = {{"batch", batch}, {"m", m}, {"n", n}, {"k", k}}};
}
// Into latents: with the rotary part of each head left out, and weights as they expand latents.
KernelOp into_latents(std::int64_t heads, std::int64_t m, std::int64_t latent, std::int64_t head,
                      std::int64_t rotary) {
  KernelOp result = op(heads, m, latent, head);
  result.dims.push_back({"transposed", 1});
  result.dims.push_back({"head_stride", head + rotary});
  return result;
}

KernelOp by_matrix(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k,
                   DType dtype = DType::kBf16) {
  KernelOp result = op(batch, m, n, k);
  result.dtype = dtype;
  result.dims.push_back({"by_matrix", 1});
  return result;
}

std::vector<KernelOp> check_ops() {
  std::vector<KernelOp> ops;
  for (const std::int64_t m : {1, 7, 64, 131}) {
    ops.insert(ops.end(),
               {op(1, m, 8, 8), op(3, m, 24, 40), op(16, m, 128, 512), into_latents(1, m, 8, 8, 8),
                into_latents(3, m, 40, 24, 8), into_latents(16, m, 512, 128, 64),
                by_matrix(1, m, 8, 8), by_matrix(5, m, 136, 264),
                by_matrix(1, m, 16, 16, DType::kFp8), by_matrix(5, m, 144, 272, DType::kFp8)});
  }
  return ops;
}
std::vector<KernelOp> bench_ops() {
  std::vector<KernelOp> ops;
  for (const std::int64_t m : {1, 64, 256, 4096}) {
    ops.push_back(into_latents(128, m, 512, 128, 64));
    ops.push_back(op(128, m, 128, 512));
  }
  for (const std::int64_t m : {64, 128}) {
    for (const DType dtype : {DType::kBf16, DType::kFp8}) {
      ops.push_back(by_matrix(16, m, 2048, 5120, dtype));
      ops.push_back(by_matrix(16, m, 5120, 1024, dtype));
    }
  }
  return ops;
}

// The heads of MLA models, whole and over 8 GPUs, between head and latent sizes.
std::vector<Grid> grids() {
  return {{.dtype = DType::kBf16,
           .axes = {{.dim = "batch", .values = {8, 16, 64, 128}},
                    {.dim = "m", .values = {1, 16, 64, 256, 1024, 4096}},
                    {.dim = "n", .values = {128, 512}},
                    {.dim = "k", .values = {128, 512}}}}};
}

}  // namespace

Launch bind_batched_gemm(const BindContext& context);  // bind.cpp

GpuKernel batched_gemm_gpu() {
  return {.name = "batched_gemm",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_batched_gemm};
}

}  // namespace orrery
