#include <stdexcept>

#include "kernels/dense/gemm/gemm.h"
#include "kernels/dense/gemm/reference.h"
#include "kernels/dense/gemm/streaming.h"
#include "kernels/harness/gpu_kernel.h"
#include "kernels/harness/operand_sets.h"

namespace orrery {
namespace {

// x and w as T, scales where T is fp8. Timed and calibrated with rowwise scales, as dynamic
// quantisation makes them; the check compares a per-tensor GEMM of the same operands too, and every
// tile that the weight-streaming kernel may be given.
template <typename T>
class GemmCase final : public KernelCase {
 public:
  GemmCase(const GemmShape& shape, const CaseOptions& options)
      : shape_(shape), seed_(options.seed), plan_(shape) {
    if (shape.has_bias) bias_ = normal_buffer<bf16>(n_count(), bias_seed());
    for (int set = 0; set < options.sets; ++set) {
      x_.push_back(normal_buffer<T>(x_count(), x_seed() + 2 * set));
      w_.push_back(normal_buffer<T>(w_count(), w_seed() + 2 * set));
      y_.emplace_back(y_count());
    }
    const cuda::Stream stream;
    fill_scales(stream);
    stream.synchronize();
  }

  void launch(const cuda::Stream& stream, int set) override { plan_.launch(stream, operands(set)); }
  void reset(const cuda::Stream& stream) override {
    fill_normal(stream, x_[0].get(), x_count(), x_seed());
    fill_normal(stream, w_[0].get(), w_count(), w_seed());
    poison(stream, y_[0]);
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    const bool is_first = ref_.empty();
    if (is_first) make_references(stream);
    std::vector<Difference> found{difference(kIsFp8 ? "y, rowwise scales" : "y",
                                             host_double(stream, y_[0].get(), y_count()), ref_,
                                             kBf16Bound)};
    if constexpr (kIsFp8) {
      GemmShape per_tensor = shape_;
      per_tensor.scaling = Fp8Scaling::kPerTensor;
      poison(stream, y_[0]);
      GemmPlan(per_tensor).launch(stream, operands(0));
      found.push_back(difference("y, per-tensor scales",
                                 host_double(stream, y_[0].get(), y_count()), per_tensor_ref_,
                                 kBf16Bound));
    }
    if (is_first && streaming_takes(shape_)) check_tiles(stream, found);
    return found;
  }
  std::vector<Tile> tiles() override {
    const auto k = static_cast<std::size_t>(shape_.k);
    const std::size_t k_tile = std::min<std::size_t>(k, 128 / sizeof(T)) * sizeof(T);
    const std::size_t outputs = std::min<std::size_t>(shape_.n, 64) * sizeof(bf16);
    auto* const x_end = reinterpret_cast<std::byte*>(x_[0].get() + x_count());
    return {{.what = "64 columns of the first token",
             .data = y_[0].get(),
             .bytes = outputs,
             .is_output = true},
            {.what = "the last row of w",
             .data = w_[0].get() + w_count() - shape_.k,
             .bytes = k * sizeof(T)},
            {.what = "the last K tile of the last token", .data = x_end - k_tile, .bytes = k_tile}};
  }
  [[nodiscard]] int num_sets() const override { return static_cast<int>(y_.size()); }

 private:
  static constexpr bool kIsFp8 = sizeof(T) == 1;

  [[nodiscard]] std::size_t x_count() const { return shape_.m * shape_.k; }
  [[nodiscard]] std::size_t w_count() const { return shape_.n * shape_.k; }
  [[nodiscard]] std::size_t y_count() const { return shape_.m * shape_.n; }
  [[nodiscard]] std::size_t n_count() const { return static_cast<std::size_t>(shape_.n); }
  [[nodiscard]] std::uint64_t x_seed() const { return seed_; }
  [[nodiscard]] std::uint64_t w_seed() const { return seed_ + 1; }
  [[nodiscard]] std::uint64_t bias_seed() const { return seed_ + 4; }

  [[nodiscard]] GemmOperands operands(int set) const {
    return {.x = x_[set].get(),
            .w = w_[set].get(),
            .y = y_[set].get(),
            .x_scale = kIsFp8 ? x_scale_.get() : nullptr,
            .w_scale = kIsFp8 ? w_scale_.get() : nullptr,
            .bias = bias_.get()};
  }
  // Two in a row in a graph that runs twice: nothing of a launch is left for the next.
  void check_tiles(const cuda::Stream& stream, std::vector<Difference>& found) {
    for (const StreamingTile& tile : streaming_candidates(shape_)) {
      for (const bool overlap : {false, true}) {
        poison(stream, y_[0]);
        const cuda::Graph graph = cuda::Graph::capture(stream, [&] {
          for (int i = 0; i < 2; ++i) {
            streaming_gemm(stream, shape_, tile, operands(0), {.overlap = overlap});
          }
        });
        for (int i = 0; i < 2; ++i) graph.launch(stream);
        found.push_back(difference("y, " + to_text(GemmChoice{.tile = tile}),
                                   host_double(stream, y_[0].get(), y_count()), ref_, kBf16Bound));
      }
    }
  }
  void fill_scales(const cuda::Stream& stream) {
    fill_uniform(stream, x_scale_.get(), x_scale_.size(), seed_ + 2, 0.5f, 1.5f);
    fill_uniform(stream, w_scale_.get(), w_scale_.size(), seed_ + 3, 0.5f, 1.5f);
  }
  void make_references(const cuda::Stream& stream) {
    const std::vector<double> x = host_normal<T>(x_count(), x_seed());
    const std::vector<double> w = host_normal<T>(w_count(), w_seed());
    const std::vector<double> x_scale = host_double(stream, x_scale_.get(), x_scale_.size());
    const std::vector<double> w_scale = host_double(stream, w_scale_.get(), w_scale_.size());
    ref_ =
        reference::gemm(x, w, shape_.m, shape_.n, shape_.k,
                        kIsFp8 ? reference::GemmScales{x_scale, w_scale} : reference::GemmScales{});
    if constexpr (kIsFp8) {
      const std::span one_x = std::span(x_scale).first(1);
      const std::span one_w = std::span(w_scale).first(1);
      per_tensor_ref_ = reference::gemm(x, w, shape_.m, shape_.n, shape_.k, {one_x, one_w});
    }
    if (!shape_.has_bias) return;
    const std::vector<double> bias = host_normal<bf16>(n_count(), bias_seed());
    reference::add_bias(ref_, bias);
    reference::add_bias(per_tensor_ref_, bias);
  }

  GemmShape shape_;
  std::uint64_t seed_;
  GemmPlan plan_;
  std::vector<cuda::DeviceBuffer<T>> x_;
  std::vector<cuda::DeviceBuffer<T>> w_;
  std::vector<cuda::DeviceBuffer<bf16>> y_;
  cuda::DeviceBuffer<bf16> bias_{0};  // none
  cuda::DeviceBuffer<float> x_scale_{static_cast<std::size_t>(shape_.m)};
  cuda::DeviceBuffer<float> w_scale_{static_cast<std::size_t>(shape_.n)};
  std::vector<double> ref_;
  std::vector<double> per_tensor_ref_;
};

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  const GemmShape shape = gemm_shape(op, variant(op.dims, "bias") != 0);
  require_gemm_shape(shape);
  if (shape.dtype == DType::kFp8) return std::make_unique<GemmCase<fp8>>(shape, options);
  return std::make_unique<GemmCase<bf16>>(shape, options);
}

KernelOp op(DType dtype, std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.kernel = "gemm", .dtype = dtype, .dims = {{"m", m}, {"n", n}, {"k", k}}};
}

// Whose kernel adds a bias.
KernelOp biased(KernelOp op) {
  op.dims.push_back({"bias", 1});
  return op;
}

// Tokens around each width of the MMA, rows and k around the tiles, k that only cuBLASLt takes.
std::vector<KernelOp> check_ops() {
  std::vector<KernelOp> ops{op(DType::kBf16, 1, 1, 1),        op(DType::kBf16, 1, 1, 8),
                            op(DType::kBf16, 3, 257, 251),    op(DType::kBf16, 64, 129, 63),
                            op(DType::kBf16, 65, 1021, 64),   op(DType::kBf16, 127, 129, 257),
                            op(DType::kBf16, 257, 512, 1024), op(DType::kBf16, 7, 32003, 64),
                            op(DType::kFp8, 65, 1008, 272),   op(DType::kFp8, 257, 512, 1024)};
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    for (const std::int64_t m : {1, 8, 9, 17, 31, 33, 63, 64}) {
      ops.push_back(op(dtype, m, 331, 1040));
      ops.push_back(op(dtype, m, 4096, 1024));
    }
    ops.push_back(op(dtype, 1, 8192, 8192));
    ops.push_back(op(dtype, 2, 1, 16));
    ops.push_back(op(dtype, 5, 63, 28672));
    ops.push_back(op(dtype, 5, 32003, 144));
    for (const std::int64_t m : {1, 13, 64, 65, 257}) {
      ops.push_back(biased(op(dtype, m, 4608, 3584)));
    }
    ops.push_back(biased(op(dtype, 3, 331, 1040)));
  }
  return ops;
}

std::vector<KernelOp> bench_ops() {
  std::vector<KernelOp> ops;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    for (const std::int64_t m : {1, 8, 16, 32, 64, 128, 256, 1024, 4096, 8192}) {
      ops.push_back(op(dtype, m, 8192, 8192));
    }
    ops.push_back(op(dtype, 1, 4096, 4096));
    ops.push_back(op(dtype, 64, 128256, 4096));
    for (const std::int64_t m : {1, 64, 1024, 8192}) {  // q, k and v of Qwen2.5-7B
      ops.push_back(op(dtype, m, 4608, 3584));
      ops.push_back(biased(op(dtype, m, 4608, 3584)));
    }
  }
  return ops;
}

// n and k of the layers of models from 1B to 405B, whole and over 8 GPUs; n up to a vocabulary.
std::vector<Grid> grids() {
  const std::vector<GridAxis> axes{
      {.dim = "m", .values = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384}},
      {.dim = "n", .values = {512, 2048, 6144, 14336, 32768, 131072}},
      {.dim = "k", .values = {512, 2048, 4096, 8192, 14336, 28672}}};
  const auto fits = [](const Dims& dims) {
    constexpr std::int64_t kMostElements = std::int64_t{1} << 31;  // of an operand or y
    const std::int64_t m = dim(dims, "m");
    const std::int64_t n = dim(dims, "n");
    const std::int64_t k = dim(dims, "k");
    return n * k <= kMostElements && m * n <= kMostElements && m * n * k <= std::int64_t{1} << 42;
  };
  return {{.dtype = DType::kBf16, .axes = axes, .accept = fits},
          {.dtype = DType::kFp8, .axes = axes, .accept = fits}};
}

}  // namespace

Launch bind_gemm(const BindContext& context);  // bind.cpp

GpuKernel gemm_gpu() {
  return {.name = "gemm",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_gemm};
}

}  // namespace orrery
