#include <algorithm>

#include "kernels/dense/quantize/activation_sets.h"
#include "kernels/experts/expert_gather/expert_gather.h"
#include "kernels/experts/gather_mul/reference.h"

namespace orrery {
namespace {

constexpr std::int64_t kRowsAhead = 3;  // of each expert ahead of the last

// The rows of an expert, and where it is not the first of those ahead of it, each by a launch of
// its own. Variant: "weighed".
class ExpertGatherCase final : public KernelCase {
 public:
  ExpertGatherCase(const KernelOp& op, const CaseOptions& options)
      : expert_(dim(op.dims, "expert")),
        tokens_(std::max<std::int64_t>(dim(op.dims, "rows"), 1)),
        hidden_(dim(op.dims, "hidden")),
        counts_(static_cast<std::size_t>(expert_ + 1), kRowsAhead),
        rows_(kRowsAhead * expert_ + dim(op.dims, "rows")),
        weighed_(variant(op.dims, "weighed") != 0),
        x_(static_cast<std::size_t>(tokens_ * hidden_), options.seed, options.sets),
        weights_(static_cast<std::size_t>(rows_), options.seed + 1, options.sets),
        y_(activation_format(op), rows_, hidden_, options.sets),
        row_token_(device_copy<std::int32_t>(tokens())) {
    counts_.back() = static_cast<std::int32_t>(dim(op.dims, "rows"));
  }

  void launch(const cuda::Stream& stream, int set) override {
    const GatheredTokens from{.x = x_[set],
                              .row_token = row_token_.get(),
                              .row_weight = weighed_ ? weights_[set] : nullptr,
                              .tokens = tokens_,
                              .rows = rows_,
                              .hidden = hidden_};
    for (std::int64_t expert = 0; expert <= expert_; ++expert) {
      const ExpertRows rows = expert_rows(counts_, expert, rows_);
      if (y_.format() == ActivationFormat::kBf16) {
        expert_gather(stream, from, rows, y_.y(set));
      } else {
        expert_gather_fp8(stream, from, rows, y_.y_fp8(set), y_.scales(set));
      }
    }
  }
  void reset(const cuda::Stream& stream) override {
    x_.reset(stream);
    y_.reset(stream);
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    const auto ref = reference::gather_mul(x_.made(), tokens(),
                                           weighed_ ? weights_.made() : std::vector<double>{},
                                           static_cast<std::size_t>(hidden_));
    return y_.differences(stream, ref);
  }
  std::vector<Tile> tiles() override {
    if (rows_ == 0) return {};
    return {y_.tile(), x_.tile("a row of x", 0, static_cast<std::size_t>(hidden_))};
  }
  [[nodiscard]] int num_sets() const override { return x_.num_sets(); }

 private:
  // Each token once or oftener, in descending order.
  [[nodiscard]] std::vector<std::int32_t> tokens() const {
    std::vector<std::int32_t> all;
    for (std::int64_t row = rows_; row > 0; --row) {
      all.push_back(static_cast<std::int32_t>((row - 1) % tokens_));
    }
    return all;
  }

  std::int64_t expert_;
  std::int64_t tokens_;
  std::int64_t hidden_;
  std::vector<std::int32_t> counts_;
  std::int64_t rows_;
  bool weighed_;
  InputSets<bf16> x_;
  InputSets<float> weights_;
  ActivationSets y_;
  cuda::DeviceBuffer<std::int32_t> row_token_;
};

KernelOp op(DType dtype, std::int64_t rows, std::int64_t hidden, std::int64_t expert,
            bool weighed = false) {
  KernelOp result{.kernel = "expert_gather",
                  .dtype = dtype,
                  .dims = {{"rows", rows}, {"hidden", hidden}, {"expert", expert}}};
  if (weighed) result.dims.push_back({"weighed", 1});
  return result;
}

// No rows, one, an odd width, the first expert and others.
std::vector<KernelOp> check_ops() {
  std::vector<KernelOp> ops;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    ops.insert(ops.end(), {op(dtype, 0, 64, 2), op(dtype, 1, 1, 0), op(dtype, 5, 2731, 0, true),
                           op(dtype, 129, 5120, 3, true), op(dtype, 2003, 264, 7)});
  }
  return ops;
}
std::vector<KernelOp> bench_ops() {
  std::vector<KernelOp> ops;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    for (const std::int64_t rows : {1, 8, 128, 1024}) ops.push_back(op(dtype, rows, 5120, 0));
  }
  return ops;
}

// Which expert it is costs nothing.
std::vector<Grid> grids() {
  std::vector<Grid> all;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    all.push_back({.dtype = dtype,
                   .axes = {{.dim = "rows", .values = {1, 16, 256, 4096, 32768}},
                            {.dim = "hidden", .values = {1024, 2048, 4096, 5120, 7168}},
                            {.dim = "expert", .values = {0}}}});
  }
  return all;
}

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  return std::make_unique<ExpertGatherCase>(op, options);
}

}  // namespace

Launch bind_expert_gather(const BindContext& context);  // bind.cpp

GpuKernel expert_gather_gpu() {
  return {.name = "expert_gather",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_expert_gather};
}

}  // namespace orrery
