#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/experts/fused_moe/buffers.h"
#include "kernels/experts/fused_moe/fused_moe.h"
#include "kernels/experts/fused_moe/reference.h"
#include "kernels/harness/operand_sets.h"

namespace orrery {
namespace {

// How tokens choose (variant "choice" of an op). The first element of each x is 1, so that of each
// row of the router is a bias.
enum Choice : std::int64_t {
  kFree,      // as x and the router say
  kOne,       // all the last expert but one, and others behind it
  kFew,       // none an even expert, where the odd ones are enough
  kTies,      // of each two experts equal scores
  kNotNumber  // one token's x is not a number
};

constexpr float kForced = 200;

std::vector<bf16> biases_of(std::int64_t experts, std::int64_t choice) {
  std::vector<bf16> biases(static_cast<std::size_t>(experts), bf16(0.0F));
  if (choice == kOne)
    biases[static_cast<std::size_t>(std::max<std::int64_t>(experts - 2, 0))] = bf16(kForced);
  if (choice == kFew) {
    for (std::size_t i = 0; i < biases.size(); i += 2) biases[i] = bf16(-kForced);
  }
  return biases;
}

FusedMoeShape shape_of(const KernelOp& op) {
  FusedMoeShape shape = fused_moe_shape(op.dtype, op.dims);
  if (variant(op.dims, "sigmoid") != 0) shape.router = RouterActivation::kSigmoid;
  shape.normalises = variant(op.dims, "normalises", 1) != 0;
  shape.groups = variant(op.dims, "groups", 1);
  shape.topk_groups = variant(op.dims, "topk_groups", 1);
  require_fused_moe_shape(shape);
  return shape;
}

// Variants: "choice"; "sigmoid" for softmax; "normalises"; "groups" and "topk_groups"; "corrected",
// with a correction bias; "biased", with one on the logits; "capacity_percent", 100 times the
// capacity factor; "before", launches of another routing, all tokens to one expert, ahead of each.
// T is that of w1 and w2.
template <typename T>
class FusedMoeCase final : public KernelCase {
 public:
  FusedMoeCase(const KernelOp& op, const CaseOptions& options)
      : shape_(shape_of(op)),
        choice_(variant(op.dims, "choice")),
        before_(variant(op.dims, "before")),
        is_corrected_(variant(op.dims, "corrected") != 0),
        is_biased_(variant(op.dims, "biased") != 0),
        plan_(shape_),
        x_(count(shape_.tokens * shape_.hidden), options.seed, options.sets),
        router_(count(shape_.experts * shape_.hidden), options.seed + 1, options.sets,
                deviation(shape_.hidden)),
        w1_(count(shape_.experts * first_layer_rows(shape_) * shape_.hidden), options.seed + 2,
            options.sets, kIsFp8 ? 1 : deviation(shape_.hidden)),
        w2_(count(shape_.experts * shape_.hidden * shape_.ffn), options.seed + 3, options.sets,
            kIsFp8 ? 1 : deviation(shape_.ffn)),
        shared_w1_(count(shape_.shared * first_layer_rows(shape_) * shape_.hidden),
                   options.seed + 8, options.sets, kIsFp8 ? 1 : deviation(shape_.hidden)),
        shared_w2_(count(shape_.shared * shape_.hidden * shape_.ffn), options.seed + 9,
                   options.sets, kIsFp8 ? 1 : deviation(shape_.ffn)),
        w1_scale_(count(kIsFp8 ? shape_.experts * first_layer_rows(shape_) : 1)),
        w2_scale_(count(kIsFp8 ? shape_.experts * shape_.hidden : 1)),
        shared_w1_scale_(count(kIsFp8 ? shape_.shared * first_layer_rows(shape_) + 1 : 1)),
        shared_w2_scale_(count(kIsFp8 ? shape_.hidden : 1)),
        correction_(count(is_corrected_ ? shape_.experts : 0), options.seed + 7, options.sets,
                    0.2F),
        logit_bias_(count(is_biased_ ? shape_.experts : 0), options.seed + 12, options.sets),
        other_router_(router_.count(), options.seed + 4, 1, deviation(shape_.hidden)),
        y_(count(shape_.tokens * shape_.hidden), options.sets),
        scores_(count(shape_.tokens * shape_.experts), options.sets),
        faults_(4, options.sets) {
    const cuda::Stream stream;
    const auto fill_scale = [&](const cuda::DeviceBuffer<float>& scale, std::int64_t columns,
                                std::uint64_t seed) {
      fill_uniform(stream, scale.get(), scale.size(), seed, 0.5F * deviation(columns),
                   1.5F * deviation(columns));
    };
    fill_scale(w1_scale_, shape_.hidden, options.seed + 5);
    fill_scale(w2_scale_, shape_.ffn, options.seed + 6);
    fill_scale(shared_w1_scale_, shape_.hidden, options.seed + 10);
    fill_scale(shared_w2_scale_, shape_.ffn, options.seed + 11);
    for (int set = 0; set < options.sets; ++set) impose(stream, set);
    put_biases(stream, other_router_[0], kOne);
    stream.synchronize();
  }

  void launch(const cuda::Stream& stream, int set) override {
    FusedMoeOperands operands{.x = x_[set],
                              .router = other_router_[0],
                              .w1 = w1_[set],
                              .w2 = w2_[set],
                              .w1_scale = w1_scale_.get(),
                              .w2_scale = w2_scale_.get(),
                              .shared_w1 = shared_w1_[set],
                              .shared_w2 = shared_w2_[set],
                              .shared_w1_scale = shared_w1_scale_.get(),
                              .shared_w2_scale = shared_w2_scale_.get(),
                              .correction_bias = is_corrected_ ? correction_[set] : nullptr,
                              .logit_bias = is_biased_ ? logit_bias_[set] : nullptr,
                              .y = y_[set],
                              .scores = scores_[set],
                              .faults = faults_[set]};
    for (std::int64_t i = 0; i < before_; ++i) plan_.launch(stream, operands, shape_.tokens);
    operands.router = router_[set];
    plan_.launch(stream, operands, shape_.tokens);
  }
  void reset(const cuda::Stream& stream) override {
    x_.reset(stream);
    router_.reset(stream);
    w1_.reset(stream);
    w2_.reset(stream);
    shared_w1_.reset(stream);
    shared_w2_.reset(stream);
    logit_bias_.reset(stream);
    y_.reset(stream);
    scores_.reset(stream);
    faults_.reset(stream);
    impose(stream, 0);
    stream.synchronize();
  }
  // Scores against the reference, y against what these scores choose.
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    plan_.require_finished(stream);
    if (made_x_.empty()) make_inputs(stream);
    std::vector<double> scores = scores_.host(stream);
    std::vector<double> y = y_.host(stream);
    const std::vector<double> faults = faults_.host(stream);
    reference::FusedMoe expected = made(scores);
    double not_numbers = 0;  // tokens whose y should be none and is
    for (const std::int32_t token : expected.faulty) {
      const auto of_token = [&](std::vector<double>& values, std::int64_t columns) {
        return std::span(values).subspan(count(token * columns), count(columns));
      };
      const auto found = of_token(y, shape_.hidden);
      not_numbers += std::ranges::all_of(found, [](double value) { return std::isnan(value); });
      std::ranges::fill(found, 0.0);
      std::ranges::fill(of_token(expected.y, shape_.hidden), 0.0);
      std::ranges::fill(of_token(scores, shape_.experts), 0.0);
      std::ranges::fill(of_token(expected.scores, shape_.experts), 0.0);
    }
    const auto faulty = static_cast<double>(expected.faulty.size());
    // What is between the layers, what experts give and the sum are rounded. Of fp8 what lies near
    // the middle of two values may become either.
    const double bound = kIsFp8 ? kFp8Bound : kBf16Bound * std::sqrt(3.0);
    constexpr double kScoreBound = 1e-4;
    return {difference("y", y, expected.y, bound),
            difference("scores", scores, expected.scores, kScoreBound),
            {.what = "faults", .error = std::abs(faults[0] - faulty)},
            {.what = "faulty tokens with numbers", .error = faulty - not_numbers}};
  }
  std::vector<Tile> tiles() override {
    const auto hidden = count(shape_.hidden);
    const auto last = count(shape_.tokens - 1);
    std::vector<Tile> tiles{
        y_.tile("64 columns of the first token", 0, std::min<std::size_t>(hidden, 64)),
        y_.tile("the last column of the last token", (last + 1) * hidden - 1, 1),
        scores_.tile("the last score", scores_.count() - 1, 1),
        x_.tile("x of the last token", last * hidden, hidden),
        expert_tile(w1_, "w1"),
        expert_tile(w2_, "w2")};
    if (shape_.experts > 1) {  // of one expert the score is 1 whatever its row is
      const std::size_t row =
          (choice_ == kOne ? forced_expert() : count(shape_.experts - 1)) * hidden;
      tiles.push_back(router_.tile("a row of the router", row, hidden));
    }
    if (is_biased_) {
      tiles.push_back(logit_bias_.tile("the bias on the logits", 0, logit_bias_.count()));
    }
    if (shape_.shared > 0) {
      const std::size_t last_part = shared_w1_.count() / count(shape_.shared);
      tiles.push_back(shared_w1_.tile("the last rows of shared w1",
                                      shared_w1_.count() - last_part / 2, last_part / 2));
      tiles.push_back(shared_w2_.tile("shared w2", 0, shared_w2_.count()));
    }
    return tiles;
  }
  [[nodiscard]] int num_sets() const override { return x_.num_sets(); }

 private:
  static constexpr bool kIsFp8 = sizeof(T) == 1;

  static std::size_t count(std::int64_t size) { return static_cast<std::size_t>(size); }
  static float deviation(std::int64_t columns) {
    return 1 / std::sqrt(static_cast<float>(columns));
  }
  [[nodiscard]] std::size_t forced_expert() const { return count(shape_.experts - 2); }
  [[nodiscard]] reference::FusedMoe made(std::span<const double> scores = {}) const {
    return reference::fused_moe(made_x_, made_router_, made_w1_, made_w2_, shape_, scores,
                                is_corrected_ ? correction_.made() : std::vector<double>(),
                                made_shared_w1_, made_shared_w2_,
                                is_biased_ ? logit_bias_.made() : std::vector<double>());
  }
  // Of the expert that counts most.
  [[nodiscard]] Tile expert_tile(const InputSets<T>& w, const char* name) {
    if (made_x_.empty()) make_inputs(cuda::Stream());
    const std::vector<std::int32_t> counts = made().counts;
    const auto most =
        choice_ == kOne
            ? forced_expert()
            : static_cast<std::size_t>(std::ranges::max_element(counts) - counts.begin());
    const std::size_t size = w.count() / counts.size();
    return w.tile(std::string(name) + " of the expert with most rows", most * size, size);
  }
  void put_biases(const cuda::Stream& stream, bf16* router, std::int64_t choice) const {
    put_column(stream, router, biases_of(shape_.experts, choice));
  }
  // The first element of each row.
  void put_column(const cuda::Stream& stream, bf16* rows, const std::vector<bf16>& values) const {
    ORRERY_CUDA(cudaMemcpy2DAsync(rows, count(shape_.hidden) * sizeof(bf16), values.data(),
                                  sizeof(bf16), sizeof(bf16), values.size(), cudaMemcpyHostToDevice,
                                  stream.get()));
    stream.synchronize();
  }
  [[nodiscard]] std::size_t faulty_element() const {
    return count(shape_.tokens / 2 * shape_.hidden + shape_.hidden - 1);
  }
  void impose(const cuda::Stream& stream, int set) const {
    put_column(stream, x_[set], std::vector<bf16>(count(shape_.tokens), bf16(1.0F)));
    put_biases(stream, router_[set], choice_);
    const std::size_t row = count(shape_.hidden);
    if (choice_ == kTies) {
      for (std::int64_t expert = 0; expert + 1 < shape_.experts; expert += 2) {
        ORRERY_CUDA(cudaMemcpyAsync(router_[set] + count(expert + 1) * row,
                                    router_[set] + count(expert) * row, row * sizeof(bf16),
                                    cudaMemcpyDeviceToDevice, stream.get()));
      }
    }
    if (choice_ == kNotNumber) {
      ORRERY_CUDA(cudaMemsetAsync(x_[set] + faulty_element(), 0xFF, sizeof(bf16), stream.get()));
    }
  }
  // As impose() leaves set 0.
  void make_inputs(const cuda::Stream& /*stream*/) {
    made_x_ = x_.made();
    made_router_ = router_.made();
    made_w1_ = weights(w1_, w1_scale_, shape_.hidden);
    made_w2_ = weights(w2_, w2_scale_, shape_.ffn);
    if (shape_.shared > 0) {
      made_shared_w1_ = weights(shared_w1_, shared_w1_scale_, shape_.hidden);
      made_shared_w2_ = weights(shared_w2_, shared_w2_scale_, shape_.shared * shape_.ffn);
    }
    const std::size_t row = count(shape_.hidden);
    for (std::size_t at = 0; at < made_x_.size(); at += row) made_x_[at] = 1;
    const std::vector<bf16> biases = biases_of(shape_.experts, choice_);
    for (std::size_t i = 0; i < biases.size(); ++i) {
      made_router_[i * row] = static_cast<double>(static_cast<float>(biases[i]));
    }
    if (choice_ == kTies) {
      for (std::size_t expert = 0; expert + 1 < biases.size(); expert += 2) {
        std::copy_n(made_router_.begin() + static_cast<std::ptrdiff_t>(expert * row), row,
                    made_router_.begin() + static_cast<std::ptrdiff_t>((expert + 1) * row));
      }
    }
    if (choice_ == kNotNumber) {
      made_x_[faulty_element()] = std::numeric_limits<double>::quiet_NaN();
    }
  }

  // Values of rows that have a scale each.
  static std::vector<double> weights(const InputSets<T>& w, const cuda::DeviceBuffer<float>& scale,
                                     std::int64_t row) {
    const std::size_t columns = count(row);
    std::vector<double> values = w.made();
    if (!kIsFp8) return values;
    const std::vector<double> scales = host_double(cuda::Stream(), scale.get(), scale.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] *= scales[i / columns];
    return values;
  }

  FusedMoeShape shape_;
  std::int64_t choice_;
  std::int64_t before_;
  bool is_corrected_;
  bool is_biased_;
  FusedMoePlan plan_;
  InputSets<bf16> x_;
  InputSets<bf16> router_;
  InputSets<T> w1_;
  InputSets<T> w2_;
  InputSets<T> shared_w1_;
  InputSets<T> shared_w2_;
  cuda::DeviceBuffer<float> w1_scale_;
  cuda::DeviceBuffer<float> w2_scale_;
  cuda::DeviceBuffer<float> shared_w1_scale_;
  cuda::DeviceBuffer<float> shared_w2_scale_;
  InputSets<float> correction_;
  InputSets<bf16> logit_bias_;
  InputSets<bf16> other_router_;
  OutputSets<bf16> y_;
  OutputSets<float> scores_;
  OutputSets<std::int32_t> faults_;
  std::vector<double> made_x_;
  std::vector<double> made_router_;
  std::vector<double> made_w1_;
  std::vector<double> made_w2_;
  std::vector<double> made_shared_w1_;
  std::vector<double> made_shared_w2_;
};

struct Sizes {
  std::int64_t tokens;
  std::int64_t hidden;
  std::int64_t ffn;
  std::int64_t experts;
  std::int64_t topk;
  std::int64_t activation = 0;
  DType dtype = DType::kBf16;
};

KernelOp op(const Sizes& sizes, const Dims& variants = {}) {
  KernelOp op{.kernel = "fused_moe",
              .dtype = sizes.dtype,
              .dims = {{"tokens", sizes.tokens},
                       {"hidden", sizes.hidden},
                       {"ffn", sizes.ffn},
                       {"experts_total", sizes.experts},
                       {"topk", sizes.topk},
                       {"activation", sizes.activation},
                       {"experts", sizes.experts},
                       {"shared", variant(variants, "shared")}}};
  std::ranges::copy_if(variants, std::back_inserter(op.dims),
                       [](const Dim& dim) { return dim.name != "shared"; });
  return op;
}

KernelOp op_fp8(Sizes sizes, const Dims& variants = {}) {
  sizes.dtype = DType::kFp8;
  return op(sizes, variants);
}

// One token; sizes that are no tiles; each activation; all tokens to one expert, experts without,
// ties, what is no number; launches behind others of another routing.
std::vector<KernelOp> check_ops() {
  return {op({1, 64, 64, 1, 1}),
          op({1, 256, 128, 8, 2}),
          op({7, 72, 40, 5, 3}),
          op({300, 256, 128, 8, 2}),
          op({300, 256, 384, 8, 2, 1}),
          op({300, 256, 264, 8, 2, 2}),
          op({333, 264, 200, 17, 4}, {{"sigmoid", 1}}),
          op({150, 512, 256, 160, 8}),
          op({64, 256, 128, 256, 8}, {{"normalises", 0}}),
          op({700, 256, 128, 8, 1}, {{"choice", kOne}}),
          op({500, 256, 128, 16, 2}, {{"choice", kOne}}),
          op({260, 256, 128, 16, 2}, {{"choice", kFew}}),
          op({260, 256, 128, 16, 3}, {{"choice", kTies}}),
          op({260, 256, 128, 16, 2}, {{"choice", kNotNumber}}),
          op({260, 256, 128, 16, 2}, {{"choice", kNotNumber}, {"sigmoid", 1}}),
          op({300, 256, 128, 16, 2}, {{"before", 1}}),
          op({300, 256, 128, 16, 2}, {{"before", 50}}),
          op({1500, 256, 128, 32, 2}, {{"before", 3}}),
          op({260, 256, 128, 32, 4}, {{"groups", 8}, {"topk_groups", 3}}),
          op({260, 256, 128, 256, 8},
             {{"sigmoid", 1}, {"groups", 8}, {"topk_groups", 4}, {"corrected", 1}}),
          op({260, 256, 128, 30, 4},
             {{"sigmoid", 1}, {"groups", 5}, {"topk_groups", 2}, {"corrected", 1}}),
          op({260, 256, 128, 128, 8}, {{"sigmoid", 1}, {"corrected", 1}}),
          op({300, 256, 128, 512, 8}),
          op({70, 1032, 136, 512, 8},
             {{"sigmoid", 1}, {"groups", 8}, {"topk_groups", 4}, {"corrected", 1}}),
          op({200, 512, 72, 300, 4}, {{"before", 3}}),
          op({1, 1024, 128, 8, 2}),
          op({130, 2056, 72, 7, 3}),
          op({4400, 512, 64, 16, 2}),
          op({300, 256, 128, 8, 2}, {{"shared", 1}}),
          op({1, 256, 136, 8, 2}, {{"shared", 2}}),
          op({260, 264, 200, 16, 8, 2}, {{"shared", 3}, {"before", 2}}),
          op({260, 256, 128, 16, 2}, {{"shared", 4}, {"choice", kFew}}),
          op({300, 256, 128, 8, 2}, {{"capacity_percent", 100}}),
          op({500, 256, 128, 16, 2}, {{"capacity_percent", 150}, {"choice", kOne}, {"before", 1}}),
          op({260, 256, 128, 16, 3}, {{"capacity_percent", 25}, {"choice", kTies}}),
          op({700, 256, 128, 8, 1}, {{"capacity_percent", 50}, {"choice", kOne}}),
          op({300, 256, 128, 8, 2}, {{"capacity_percent", 50}, {"shared", 1}, {"choice", kOne}}),
          op({300, 256, 128, 8, 2}, {{"biased", 1}}),
          op({4400, 512, 64, 16, 2}, {{"biased", 1}, {"sigmoid", 1}, {"before", 1}}),
          op({130, 2056, 72, 7, 3}, {{"biased", 1}}),
          op({70, 1032, 136, 512, 8},
             {{"sigmoid", 1}, {"groups", 8}, {"topk_groups", 4}, {"corrected", 1}, {"biased", 1}}),
          op_fp8({1, 64, 64, 1, 1}),
          op_fp8({1, 256, 128, 8, 2}),
          op_fp8({7, 80, 48, 5, 3}),
          op_fp8({300, 256, 128, 8, 2}),
          op_fp8({300, 256, 384, 8, 2, 1}),
          op_fp8({300, 2192, 272, 8, 2, 2}),
          op_fp8({333, 272, 208, 17, 4}, {{"sigmoid", 1}}),
          op_fp8({150, 512, 1296, 160, 8}),
          op_fp8({700, 256, 128, 8, 1}, {{"choice", kOne}}),
          op_fp8({260, 256, 128, 16, 2}, {{"choice", kFew}}),
          op_fp8({260, 256, 128, 16, 2}, {{"choice", kNotNumber}}),
          op_fp8({300, 256, 128, 16, 2}, {{"before", 1}}),
          op_fp8({260, 256, 128, 256, 8},
                 {{"sigmoid", 1}, {"groups", 8}, {"topk_groups", 4}, {"corrected", 1}}),
          op_fp8({1500, 256, 128, 32, 2}, {{"before", 50}}),
          op_fp8({300, 1024, 128, 512, 8}),
          op_fp8({300, 256, 128, 8, 2}, {{"shared", 1}}),
          op_fp8({77, 272, 144, 8, 4, 1}, {{"shared", 2}, {"before", 1}}),
          op_fp8({500, 256, 128, 16, 2}, {{"capacity_percent", 100}, {"choice", kOne}}),
          op_fp8({300, 256, 128, 8, 2}, {{"capacity_percent", 75}, {"shared", 1}}),
          op_fp8({300, 1024, 128, 8, 2}, {{"biased", 1}, {"capacity_percent", 75}})};
}

// Mixtures of 64 experts of 2048 x 2048, gated and plain; Qwen3-30B-A3B's.
std::vector<KernelOp> bench_ops() {
  std::vector<KernelOp> ops;
  for (const std::int64_t tokens : {128, 1024, 4096, 8192, 16384}) {
    ops.push_back(op({tokens, 2048, 2048, 64, 2}));
    ops.push_back(op({tokens, 2048, 2048, 64, 2, 1}));
    ops.push_back(op_fp8({tokens, 2048, 2048, 64, 2}));
  }
  for (const std::int64_t tokens : {1024, 8192}) ops.push_back(op({tokens, 2048, 768, 128, 8}));
  return ops;
}

std::vector<Grid> grids() {
  std::vector<Grid> grids;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    grids.push_back({.dtype = dtype,
                     .axes = {{.dim = "tokens", .values = {1, 16, 128, 1024, 8192, 16384}},
                              {.dim = "hidden", .values = {2048}},
                              {.dim = "ffn", .values = {768, 2048}},
                              {.dim = "experts_total", .values = {64, 128}},
                              {.dim = "topk", .values = {2, 8}},
                              {.dim = "activation", .values = {0, 1}},
                              {.dim = "experts", .values = {64, 128}},
                              {.dim = "shared", .values = {0}}},
                     .accept = [](const Dims& dims) {
                       return dim(dims, "experts") == dim(dims, "experts_total");  // of one rank
                     }});
  }
  return grids;
}

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  if (op.dtype == DType::kFp8) return std::make_unique<FusedMoeCase<fp8>>(op, options);
  return std::make_unique<FusedMoeCase<bf16>>(op, options);
}

}  // namespace

Launch bind_fused_moe(const BindContext& context);

GpuKernel fused_moe_gpu() {
  return {.name = "fused_moe",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_fused_moe};
}

}  // namespace orrery
