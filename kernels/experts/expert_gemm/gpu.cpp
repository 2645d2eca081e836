#include <stdexcept>

#include "kernels/dense/gemm/reference.h"
#include "kernels/experts/expert_gemm/expert_gemm.h"
#include "kernels/harness/operand_sets.h"

namespace orrery {
namespace {

// The rows of an expert, behind 3 of each expert ahead of it. T is bf16 or fp8.
template <typename T>
class ExpertGemmCase final : public KernelCase {
 public:
  ExpertGemmCase(const GemmShape& shape, std::int64_t expert, const CaseOptions& options)
      : plan_(shape),
        expert_(expert),
        rows_{.first = 3 * expert, .count = shape.m},
        x_(static_cast<std::size_t>((rows_.first + shape.m) * shape.k), options.seed, options.sets),
        w_(static_cast<std::size_t>((expert + 1) * shape.n * shape.k), options.seed + 1,
           options.sets),
        x_scales_(static_cast<std::size_t>(rows_.first + shape.m), options.seed + 2, 1),
        w_scales_(static_cast<std::size_t>((expert + 1) * shape.n), options.seed + 3, 1),
        scales_(static_cast<std::size_t>(shape.m), 1),
        y_(static_cast<std::size_t>((rows_.first + shape.m) * shape.n), options.sets) {}

  void launch(const cuda::Stream& stream, int set) override {
    expert_gemm(stream, plan_, rows_, expert_,
                {.x = x_[set],
                 .w = w_[set],
                 .y = y_[set],
                 .x_scale = kIsFp8 ? x_scales_[0] : nullptr,
                 .w_scale = kIsFp8 ? w_scales_[0] : nullptr},
                scales_[0]);
  }
  void reset(const cuda::Stream& stream) override {
    x_.reset(stream);
    w_.reset(stream);
    y_.reset(stream);
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    const GemmShape& shape = plan_.shape();
    const auto behind = [](std::vector<double> all, std::int64_t first) {
      all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first));
      return all;
    };
    const auto x = behind(x_.made(), rows_.first * shape.k);
    const auto w = behind(w_.made(), expert_ * shape.n * shape.k);
    const auto x_scales = behind(x_scales_.made(), rows_.first);
    const auto w_scales = behind(w_scales_.made(), expert_ * shape.n);
    const auto ref = reference::gemm(
        x, w, shape.m, shape.n, shape.k,
        kIsFp8 ? reference::GemmScales{x_scales, w_scales} : reference::GemmScales{});
    std::vector<double> y = y_.host(stream);
    const auto ahead = static_cast<std::size_t>(rows_.first * shape.n);
    const std::vector<double> own(y.begin() + static_cast<std::ptrdiff_t>(ahead), y.end());
    y.resize(ahead);
    return {difference("y", own, ref, kBf16Bound),
            {.what = "written ahead", .error = static_cast<double>(cut_written(y, 0))}};
  }
  std::vector<Tile> tiles() override {
    const GemmShape& shape = plan_.shape();
    if (shape.m == 0) return {};
    const auto k = static_cast<std::size_t>(shape.k);
    return {y_.tile("columns of the last row", y_.count() - 1, 1),
            x_.tile("the last row", x_.count() - k, k),
            w_.tile("the last row of w", w_.count() - k, k)};
  }
  [[nodiscard]] int num_sets() const override { return x_.num_sets(); }

 private:
  static constexpr bool kIsFp8 = sizeof(T) == 1;

  GemmPlan plan_;
  std::int64_t expert_;
  ExpertRows rows_;
  InputSets<T> x_;
  InputSets<T> w_;
  InputSets<float> x_scales_;
  InputSets<float> w_scales_;
  OutputSets<float> scales_;
  OutputSets<bf16> y_;
};

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  const GemmShape shape{
      .dtype = op.dtype, .m = dim(op.dims, "m"), .n = dim(op.dims, "n"), .k = dim(op.dims, "k")};
  require_gemm_shape(shape);
  const std::int64_t expert = dim(op.dims, "expert");
  if (shape.dtype == DType::kFp8) {
    return std::make_unique<ExpertGemmCase<fp8>>(shape, expert, options);
  }
  return std::make_unique<ExpertGemmCase<bf16>>(shape, expert, options);
}

KernelOp op(DType dtype, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t expert) {
  return {.kernel = "expert_gemm",
          .dtype = dtype,
          .dims = {{"m", m}, {"n", n}, {"k", k}, {"expert", expert}}};
}

// No rows, and rows for each of the two kernels that serve gemms; the first expert and others.
std::vector<KernelOp> check_ops() {
  std::vector<KernelOp> ops;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    ops.insert(ops.end(), {op(dtype, 0, 64, 128, 2), op(dtype, 1, 16, 16, 0),
                           op(dtype, 7, 1024, 512, 3), op(dtype, 131, 256, 272, 5)});
  }
  return ops;
}
std::vector<KernelOp> bench_ops() {
  std::vector<KernelOp> ops;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    for (const std::int64_t m : {1, 8, 128, 1024}) {
      ops.push_back(op(dtype, m, 2048, 5120, 0));
      ops.push_back(op(dtype, m, 5120, 1024, 0));
    }
  }
  return ops;
}

// n and k of experts, whole and over 8 GPUs. Which expert it is costs nothing.
std::vector<Grid> grids() {
  std::vector<Grid> all;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    all.push_back({.dtype = dtype,
                   .axes = {{.dim = "m", .values = {1, 8, 16, 32, 64, 128, 256, 1024, 4096}},
                            {.dim = "n", .values = {512, 2048, 5120, 16384}},
                            {.dim = "k", .values = {512, 2048, 5120, 8192}},
                            {.dim = "expert", .values = {0}}}});
  }
  return all;
}

}  // namespace

Launch bind_expert_gemm(const BindContext& context);  // bind.cpp

GpuKernel expert_gemm_gpu() {
  return {.name = "expert_gemm",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_expert_gemm};
}

}  // namespace orrery
