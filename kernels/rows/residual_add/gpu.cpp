#include <algorithm>
#include <stdexcept>

#include "kernels/harness/gpu_kernel.h"
#include "kernels/harness/operands.h"
#include "kernels/rows/residual_add/reference.h"
#include "kernels/rows/residual_add/residual_add.h"

namespace orrery {
namespace {

class ResidualAddCase final : public KernelCase {
 public:
  ResidualAddCase(const KernelOp& op, const CaseOptions& options)
      : tokens_(dim(op.dims, "tokens")), hidden_(dim(op.dims, "hidden")), seed_(options.seed) {
    if (op.dtype != DType::kBf16) throw std::invalid_argument("residual_add takes bf16 only");
    for (int set = 0; set < options.sets; ++set) {
      residual_.push_back(
          normal_buffer<bf16>(count(), seed_ + 2 * static_cast<std::uint64_t>(set)));
      x_.push_back(normal_buffer<bf16>(count(), seed_ + 2 * static_cast<std::uint64_t>(set) + 1));
    }
  }

  void launch(const cuda::Stream& stream, int set) override {
    bf16* const residual = residual_[set].get();
    residual_add(stream, residual, x_[set].get(), residual, tokens_, hidden_);
  }
  void reset(const cuda::Stream& stream) override {
    fill_normal(stream, residual_[0].get(), count(), seed_);
    fill_normal(stream, x_[0].get(), count(), seed_ + 1);
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    const auto ref = reference::residual_add(host_normal<bf16>(count(), seed_),
                                             host_normal<bf16>(count(), seed_ + 1));
    return {
        difference("residual", host_double(stream, residual_[0].get(), count()), ref, kBf16Bound)};
  }
  std::vector<Tile> tiles() override {
    const std::size_t bytes = std::min<std::size_t>(count(), 256) * sizeof(bf16);
    return {{.what = "256 sums", .data = residual_[0].get(), .bytes = bytes, .is_output = true},
            {.what = "256 of x", .data = x_[0].get(), .bytes = bytes}};
  }
  [[nodiscard]] int num_sets() const override { return static_cast<int>(x_.size()); }

 private:
  [[nodiscard]] std::size_t count() const { return static_cast<std::size_t>(tokens_ * hidden_); }

  std::int64_t tokens_;
  std::int64_t hidden_;
  std::uint64_t seed_;
  std::vector<cuda::DeviceBuffer<bf16>> residual_;
  std::vector<cuda::DeviceBuffer<bf16>> x_;
};

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  return std::make_unique<ResidualAddCase>(op, options);
}

KernelOp op(std::int64_t tokens, std::int64_t hidden) {
  return {.kernel = "residual_add", .dims = {{"tokens", tokens}, {"hidden", hidden}}};
}

std::vector<KernelOp> check_ops() {
  return {op(1, 1), op(1, 7), op(3, 2731), op(1, 8192), op(127, 5120), op(1024, 8193)};
}
std::vector<KernelOp> bench_ops() { return {op(64, 8192), op(4096, 8192), op(16384, 8192)}; }

std::vector<Grid> grids() {
  return {{.axes = {{.dim = "tokens", .values = {1, 16, 256, 4096, 32768}},
                    {.dim = "hidden", .values = {2048, 4096, 8192, 16384}}}}};
}

}  // namespace

Launch bind_residual_add(const BindContext& context);  // bind.cpp

GpuKernel residual_add_gpu() {
  return {.name = "residual_add",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_residual_add};
}

}  // namespace orrery
