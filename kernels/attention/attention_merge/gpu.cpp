#include <cmath>
#include <limits>
#include <stdexcept>

#include "kernels/attention/attention_merge/attention_merge.h"
#include "kernels/attention/attention_merge/reference.h"
#include "kernels/harness/operand_sets.h"

namespace orrery {
namespace {

// Every fifth head of the last part has no keys and every eleventh head no part that has some.
std::vector<float> log_sums(const AttentionMergeShape& shape) {
  const std::int64_t heads = shape.tokens * shape.heads;
  std::vector<float> lse;
  for (std::int64_t part = 0; part < shape.parts; ++part) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const bool is_empty = (part + 1 == shape.parts && head % 5 == 3) || head % 11 == 7;
      const auto value =
          static_cast<float>(4 + 3 * std::sin(static_cast<double>(head * shape.parts + 2 * part)));
      lse.push_back(is_empty ? -std::numeric_limits<float>::infinity() : value);
    }
  }
  return lse;
}

class AttentionMergeCase final : public KernelCase {
 public:
  AttentionMergeCase(const KernelOp& op, const CaseOptions& options)
      : shape_{.parts = dim(op.dims, "parts"),
               .tokens = dim(op.dims, "tokens"),
               .heads = dim(op.dims, "heads"),
               .head_dim = dim(op.dims, "head_dim")},
        lse_(log_sums(shape_)),
        parts_(static_cast<std::size_t>(shape_.parts) * out_size(), options.seed, options.sets),
        out_(out_size(), options.sets) {
    for (int set = 0; set < options.sets; ++set) {
      device_lse_.push_back(device_copy<float>(lse_));
    }
  }

  void launch(const cuda::Stream& stream, int set) override {
    attention_merge(
        stream,
        parts_in_order(parts_[set], device_lse_[static_cast<std::size_t>(set)].get(), shape_),
        shape_, out_[set]);
  }
  void reset(const cuda::Stream& stream) override {
    parts_.reset(stream);
    out_.reset(stream);
    ORRERY_CUDA(cudaMemcpyAsync(device_lse_[0].get(), lse_.data(), lse_.size() * sizeof(float),
                                cudaMemcpyHostToDevice, stream.get()));
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    const std::vector<double> lse(lse_.begin(), lse_.end());
    return {difference(
        "out", out_.host(stream),
        reference::attention_merge(parts_.made(), lse, shape_.parts, shape_.head_dim), kBf16Bound)};
  }
  std::vector<Tile> tiles() override {
    const auto heads = static_cast<std::size_t>(shape_.heads);
    const auto head_dim = static_cast<std::size_t>(shape_.head_dim);
    std::vector<Tile> all{out_.tile("a head", 0, head_dim),
                          parts_.tile("a part of a token", 0, heads * head_dim)};
    if (shape_.parts == 1) return all;  // whose weight is 1 whatever its log-sum-exp
    all.push_back({.what = "log-sum-exps of a token",
                   .data = device_lse_[0].get(),
                   .bytes = heads * sizeof(float)});
    return all;
  }
  [[nodiscard]] int num_sets() const override { return parts_.num_sets(); }

 private:
  [[nodiscard]] std::size_t out_size() const {
    return static_cast<std::size_t>(shape_.tokens * shape_.heads * shape_.head_dim);
  }

  AttentionMergeShape shape_;
  std::vector<float> lse_;
  InputSets<bf16> parts_;
  OutputSets<bf16> out_;
  std::vector<cuda::DeviceBuffer<float>> device_lse_;
};

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  if (op.dtype != DType::kBf16) throw std::invalid_argument("attention_merge takes bf16 only");
  return std::make_unique<AttentionMergeCase>(op, options);
}

KernelOp op(std::int64_t parts, std::int64_t tokens, std::int64_t heads,
            std::int64_t head_dim = 128) {
  return {.kernel = "attention_merge",
          .dims = {{"parts", parts}, {"tokens", tokens}, {"heads", heads}, {"head_dim", head_dim}}};
}

// One row; one part; heads that end within a block; more parts than loads are in flight.
std::vector<KernelOp> check_ops() {
  return {op(2, 1, 1),      op(1, 3, 5),      op(2, 127, 16), op(3, 31, 7, 64),
          op(9, 33, 4, 40), op(2, 4, 32, 64), op(4, 1024, 8)};
}
std::vector<KernelOp> bench_ops() { return {op(2, 8, 16), op(2, 256, 32), op(4, 16384, 8)}; }

std::vector<Grid> grids() {
  return {{.dtype = DType::kBf16,
           .axes = {{.dim = "parts", .values = {2, 4, 8}},
                    {.dim = "tokens", .values = {1, 16, 256, 4096}},
                    {.dim = "heads", .values = {4, 16, 64}},
                    {.dim = "head_dim", .values = {128}}}}};
}

}  // namespace

Launch bind_attention_merge(const BindContext& context);  // bind.cpp

GpuKernel attention_merge_gpu() {
  return {.name = "attention_merge",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_attention_merge};
}

}  // namespace orrery
