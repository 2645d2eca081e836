#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <stdexcept>

#include "kernels/attention/attention_prefill/prefill_case.h"
#include "kernels/attention/mla_prefill/mla_prefill.h"
#include "kernels/kernel_spec.h"

namespace orrery {
namespace {

class MlaPrefillCase final : public KernelCase {
 public:
  MlaPrefillCase(const KernelOp& op, const CaseOptions& options)
      : heads_(dim(op.dims, "heads")), seed_(options.seed) {
    if (op.dtype != DType::kBf16) throw std::invalid_argument("mla_prefill takes bf16 only");
    if (dim(op.dims, "qk_head_dim") != kMlaQkHeadDim ||
        dim(op.dims, "v_head_dim") != kMlaVHeadDim) {
      throw std::invalid_argument("mla_prefill takes qk_head_dim 192 and v_head_dim 128 only");
    }
    sequences_ = prefill::sequences(dim(op.dims, "batch"), dim(op.dims, "query"),
                                    dim(op.dims, "context"), options.vary);
    plan_ = std::make_unique<PrefillPlan>(sequences_, kMlaPrefillTileRows);
    for (int set = 0; set < options.sets; ++set) {
      sets_.push_back({.q = cuda::DeviceBuffer<bf16>(rows() * kMlaQkHeadDim),
                       .keys = cuda::DeviceBuffer<bf16>(key_rows() * kMlaPlainDim),
                       .rotated = cuda::DeviceBuffer<bf16>(rotated_count()),
                       .values = cuda::DeviceBuffer<bf16>(key_rows() * kMlaVHeadDim),
                       .out = cuda::DeviceBuffer<bf16>(rows() * kMlaVHeadDim),
                       .lse = cuda::DeviceBuffer<float>(rows())});
      fill(cuda::Stream(), set);
    }
  }

  void launch(const cuda::Stream& stream, int set) override {
    const Set& s = sets_[set];
    mla_prefill(stream, *plan_,
                {.q = s.q.get(),
                 .keys = {.data = s.keys.get()},
                 .rotated = {.data = s.rotated.get()},
                 .values = {.data = s.values.get()},
                 .out = s.out.get(),
                 .lse = s.lse.get(),
                 .heads = static_cast<std::int32_t>(heads_),
                 .scale = static_cast<float>(kScale)});
  }
  void reset(const cuda::Stream& stream) override {
    fill(stream, 0);
    poison(stream, sets_[0].out);
    poison(stream, sets_[0].lse);
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    if (!reference_) {
      reference_.emplace(sequences_,
                         reference::AttentionShape{.heads = heads_,
                                                   .kv_heads = heads_,
                                                   .qk_dim = kMlaQkHeadDim,
                                                   .v_dim = kMlaVHeadDim,
                                                   .scale = kScale},
                         host_normal<bf16>(rows() * kMlaQkHeadDim, seed_), host_keys(),
                         host_normal<bf16>(key_rows() * kMlaVHeadDim, seed_ + 2));
    }
    return reference_->differences(stream, sets_[0].out.get(), sets_[0].lse.get());
  }
  std::vector<Tile> tiles() override {
    // Keys and values from the first token's own on.
    const Set& s = sets_[0];
    const std::size_t first = sequences_[0].context * heads_;
    const std::size_t rows = std::min<std::int64_t>(64, sequences_[0].query) * heads_;
    return {{.what = "outputs of 64 tokens",
             .data = s.out.get(),
             .bytes = rows * kMlaVHeadDim * sizeof(bf16),
             .is_output = true},
            {.what = "an lse", .data = s.lse.get(), .bytes = sizeof(float), .is_output = true},
            {.what = "a tile of keys",
             .data = s.keys.get() + first * kMlaPlainDim,
             .bytes = rows * kMlaPlainDim * sizeof(bf16)},
            {.what = "a tile of rotated keys",
             .data = s.rotated.get() + first / heads_ * kMlaRotatedDim,
             .bytes = rows / heads_ * kMlaRotatedDim * sizeof(bf16)},
            {.what = "a tile of values",
             .data = s.values.get() + first * kMlaVHeadDim,
             .bytes = rows * kMlaVHeadDim * sizeof(bf16)}};
  }
  [[nodiscard]] int num_sets() const override { return static_cast<int>(sets_.size()); }

 private:
  static constexpr double kScale = 0.07216878364870322;  // 1 / sqrt(192)
  struct Set {
    cuda::DeviceBuffer<bf16> q;
    cuda::DeviceBuffer<bf16> keys;
    cuda::DeviceBuffer<bf16> rotated;
    cuda::DeviceBuffer<bf16> values;
    cuda::DeviceBuffer<bf16> out;
    cuda::DeviceBuffer<float> lse;
  };

  [[nodiscard]] std::size_t rows() const { return plan_->tokens() * heads_; }
  [[nodiscard]] std::size_t key_rows() const { return plan_->keys() * heads_; }
  [[nodiscard]] std::size_t rotated_count() const {
    return static_cast<std::size_t>(plan_->keys()) * kMlaRotatedDim;
  }

  // As made: each head's part, and the part that all share.
  [[nodiscard]] std::vector<double> host_keys() const {
    const auto plain = host_normal<bf16>(key_rows() * kMlaPlainDim, seed_ + 1);
    const auto rotated = host_normal<bf16>(rotated_count(), seed_ + 3);
    std::vector<double> keys;
    keys.reserve(key_rows() * kMlaQkHeadDim);
    for (std::size_t row = 0; row < key_rows(); ++row) {
      const auto own = plain.begin() + static_cast<std::ptrdiff_t>(row * kMlaPlainDim);
      const auto shared =
          rotated.begin() + static_cast<std::ptrdiff_t>(row / heads_ * kMlaRotatedDim);
      keys.insert(keys.end(), own, own + kMlaPlainDim);
      keys.insert(keys.end(), shared, shared + kMlaRotatedDim);
    }
    return keys;
  }

  // Complete on return.
  void fill(const cuda::Stream& stream, int set) {
    const Set& s = sets_[set];
    const std::uint64_t seed = seed_ + 4 * static_cast<std::uint64_t>(set);
    fill_normal(stream, s.q.get(), s.q.size(), seed);
    fill_normal(stream, s.keys.get(), s.keys.size(), seed + 1);
    fill_normal(stream, s.values.get(), s.values.size(), seed + 2);
    fill_normal(stream, s.rotated.get(), s.rotated.size(), seed + 3);
    stream.synchronize();
  }

  std::int64_t heads_;
  std::uint64_t seed_;
  std::vector<PrefillChunk> sequences_;
  std::unique_ptr<PrefillPlan> plan_;
  std::vector<Set> sets_;
  std::optional<prefill::SampledReference> reference_;
};

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  return std::make_unique<MlaPrefillCase>(op, options);
}

KernelOp op(std::int64_t batch, std::int64_t query, std::int64_t context, std::int64_t heads) {
  return {.kernel = "mla_prefill",
          .dims = {{"batch", batch},
                   {"query", query},
                   {"context", context},
                   {"heads", heads},
                   {"qk_head_dim", kMlaQkHeadDim},
                   {"v_head_dim", kMlaVHeadDim}}};
}

std::vector<KernelOp> check_ops() {
  return {op(1, 1, 0, 1),      op(1, 63, 1, 3),   op(1, 65, 0, 7),
          op(1, 129, 100, 2),  op(1, 1, 1009, 8), op(3, 193, 0, 4),
          op(5, 257, 1013, 3), op(2, 1024, 0, 4), op(2, 512, 3000, 2)};
}

std::vector<KernelOp> bench_ops() {
  return {op(1, 2048, 0, 32), op(1, 8192, 0, 16), op(1, 16384, 0, 16), op(1, 2048, 14336, 16)};
}

// Points of at most 20 ms at 500 TFLOP/s.
bool is_measured(const Dims& dims) {
  constexpr Flops kMost{1e13};
  return kernel_spec("mla_prefill").work(DType::kBf16, dims).flops <= kMost;
}

std::vector<Grid> grids() {
  return {{.axes = {{.dim = "batch", .values = {1, 4}},
                    {.dim = "query", .values = {16, 128, 512, 2048, 8192, 32768}},
                    {.dim = "context", .values = {0, 1024, 8192, 32768}},
                    {.dim = "heads", .values = {8, 32, 128}},
                    {.dim = "qk_head_dim", .values = {kMlaQkHeadDim}},
                    {.dim = "v_head_dim", .values = {kMlaVHeadDim}}},
           .accept = is_measured}};
}

}  // namespace

Launch bind_mla_prefill(const BindContext& context);  // bind.cpp

GpuKernel mla_prefill_gpu() {
  return {.name = "mla_prefill",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_mla_prefill};
}

}  // namespace orrery
