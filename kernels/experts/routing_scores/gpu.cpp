#include <cmath>
#include <memory>
#include <stdexcept>

#include "kernels/cuda/device_copy.h"
#include "kernels/experts/routing_scores/reference.h"
#include "kernels/experts/routing_scores/routing_scores.h"
#include "kernels/harness/operand_sets.h"

namespace orrery {
namespace {

// fp32 throughout: sums of `hidden` products of any order, and an exponential.
constexpr double kScoreBound = 2e-5;

class RoutingScoresCase final : public KernelCase {
 public:
  RoutingScoresCase(const KernelOp& op, const CaseOptions& options)
      : shape_(shape_of(op)),
        tile_(tile_of(op, shape_)),
        has_bias_(variant(op.dims, "bias") != 0),
        overlap_(variant(op.dims, "overlap") != 0),
        slots_(slots_of(op.dims, shape_.tokens)),
        device_slots_(device_copy<std::int64_t>(slots_)),
        x_(static_cast<std::size_t>(shape_.tokens * shape_.hidden), options.seed, options.sets),
        // Logits of deviation 2.
        w_(static_cast<std::size_t>(shape_.experts_total * shape_.hidden), options.seed + 1,
           options.sets, 2.0f / std::sqrt(static_cast<float>(shape_.hidden))),
        bias_(static_cast<std::size_t>(shape_.experts_total), options.seed + 2, 1),
        scores_(static_cast<std::size_t>(shape_.tokens * shape_.experts_total), options.sets) {}

  void launch(const cuda::Stream& stream, int set) override {
    routing_scores(stream,
                   {.x = x_[set],
                    .w = w_[set],
                    .bias = has_bias_ ? bias_[0] : nullptr,
                    .slots = slots_.empty() ? nullptr : device_slots_.get(),
                    .scores = scores_[set]},
                   shape_, tile_, overlap_);
  }
  void reset(const cuda::Stream& stream) override {
    x_.reset(stream);
    w_.reset(stream);
    bias_.reset(stream);
    scores_.reset(stream);
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    if (ref_.empty()) {
      ref_ = reference::routing_scores(x_.made(), w_.made(),
                                       has_bias_ ? bias_.made() : std::vector<double>{}, shape_);
      reference::pad_scores(ref_, slots_);
    }
    return {compared(scores_.host(stream))};
  }
  // A soft-max of one expert is 1 whatever is read.
  std::vector<Tile> tiles() override {
    const auto hidden = static_cast<std::size_t>(shape_.hidden);
    const auto middle = static_cast<std::size_t>(shape_.tokens / 2);
    std::vector<Tile> all{scores_.tile("a score", scores_.count() / 2, 1)};
    if (shape_.activation == RouterActivation::kSigmoid || shape_.experts_total > 1) {
      all.push_back(x_.tile("the end of a row of x", middle * hidden + hidden - 8, 8));
      all.push_back(w_.tile("64 of a row of w",
                            static_cast<std::size_t>(shape_.experts_total / 2) * hidden, 64));
    }
    return all;
  }
  [[nodiscard]] int num_sets() const override { return x_.num_sets(); }

 private:
  // Rows that pad are -infinity on both sides, or else differ by 1.
  [[nodiscard]] Difference compared(std::vector<double> found) const {
    std::vector<double> wanted = ref_;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] != -INFINITY) continue;
      found[i] = found[i] == -INFINITY ? 0 : 1;
      wanted[i] = 0;
    }
    return difference("scores", found, wanted, kScoreBound);
  }
  static RoutingScoresShape shape_of(const KernelOp& op) {
    const RoutingScoresShape shape{.tokens = dim(op.dims, "tokens"),
                                   .hidden = dim(op.dims, "hidden"),
                                   .experts_total = dim(op.dims, "experts_total"),
                                   .activation = variant(op.dims, "sigmoid") != 0
                                                     ? RouterActivation::kSigmoid
                                                     : RouterActivation::kSoftmax};
    require_routing_scores_shape(shape);
    return shape;
  }
  // Two of three rows have a slot, the middle one among them.
  static std::vector<std::int64_t> slots_of(const Dims& dims, std::int64_t tokens) {
    std::vector<std::int64_t> slots;
    if (variant(dims, "padded") == 0) return slots;
    for (std::int64_t row = 0; row < tokens; ++row) {
      slots.push_back((row - tokens / 2 + 3 * tokens) % 3 == 1 ? -1 : row);
    }
    return slots;
  }
  // The rule's, unless the op says "rows", "columns" and "cluster".
  static RoutingScoresTile tile_of(const KernelOp& op, const RoutingScoresShape& shape) {
    const std::int64_t rows = variant(op.dims, "rows");
    if (rows == 0) return routing_scores_tile(shape);
    return {.rows = static_cast<int>(rows),
            .columns = static_cast<int>(variant(op.dims, "columns", routing_scores_columns(shape))),
            .cluster = static_cast<int>(variant(op.dims, "cluster", 1))};
  }

  RoutingScoresShape shape_;
  RoutingScoresTile tile_;
  bool has_bias_;
  bool overlap_;
  std::vector<std::int64_t> slots_;  // of the variant "padded"; none without it
  cuda::DeviceBuffer<std::int64_t> device_slots_;
  InputSets<bf16> x_;
  InputSets<bf16> w_;
  InputSets<bf16> bias_;
  OutputSets<float> scores_;
  std::vector<double> ref_;  // of the operands as made
};

using Variants = std::vector<std::pair<std::string_view, std::int64_t>>;

KernelOp op(std::int64_t tokens, std::int64_t hidden, std::int64_t experts_total,
            const Variants& variants = {}) {
  KernelOp op{.kernel = "routing_scores",
              .dtype = DType::kBf16,
              .dims = {{"tokens", tokens}, {"hidden", hidden}, {"experts_total", experts_total}}};
  for (const auto& [name, size] : variants) op.dims.push_back({std::string(name), size, {}});
  return op;
}

// One token, one expert, the least of hidden; just around the rows of a tile, a stage of hidden and
// each number of columns; w ahead of the kernel before; fewer stages than blocks that share them;
// soft-max and sigmoid, with and without bias; every tile.
std::vector<KernelOp> check_ops() {
  std::vector<KernelOp> ops{op(1, 8, 1), op(1, 8, 1, {{"sigmoid", 1}})};
  for (const std::int64_t experts : {7, 16, 18, 61, 128, 163, 258, 512}) {
    const Variants variants{{"sigmoid", experts % 2}, {"bias", experts % 4 / 2}};
    ops.insert(ops.end(), {op(1, 5120, experts, variants), op(65, 1032, experts, variants),
                           op(63, 328, experts, variants), op(1021, 520, experts, variants),
                           op(4291, 136, experts, variants), op(8513, 72, experts, variants)});
  }
  for (const std::int64_t experts : {16, 64, 128, 256, 512}) {
    for (const std::int64_t rows : {16, 32, 64, 128, 256}) {
      for (const std::int64_t cluster : {1, 2, 4, 8, 16}) {
        if (experts * rows > 32768 || (experts > 128 && rows < 64)) continue;
        ops.push_back(op(333, 520, experts, {{"rows", rows}, {"cluster", cluster}}));
      }
    }
  }
  for (const std::int64_t experts : {16, 128}) {
    ops.push_back(op(65, 5120, experts, {{"overlap", 1}}));
    ops.push_back(op(1021, 520, experts, {{"overlap", 1}}));
  }
  for (const std::int64_t experts : {16, 61, 128, 256}) {
    ops.push_back(op(65, 1032, experts, {{"padded", 1}, {"sigmoid", experts % 2}}));
    ops.push_back(op(1021, 520, experts, {{"padded", 1}}));
  }
  for (const std::int64_t columns : {16, 64, 256}) {
    ops.push_back(
        op(333, 520, 260,
           {{"rows", 64}, {"cluster", 4}, {"columns", columns}, {"sigmoid", 1}, {"bias", 1}}));
  }
  return ops;
}

std::vector<KernelOp> bench_ops() {
  std::vector<KernelOp> ops;
  for (const auto& [hidden, experts] : {std::pair<std::int64_t, std::int64_t>{5120, 16},
                                        {5120, 128},
                                        {4096, 8},
                                        {2048, 128},
                                        {7168, 256}}) {
    for (const std::int64_t tokens : {1, 64, 128, 512, 2048, 4096, 8192, 16384}) {
      ops.push_back(op(tokens, hidden, experts));
      ops.push_back(op(tokens, hidden, experts, {{"sigmoid", 1}}));
    }
  }
  return ops;
}

std::vector<Grid> grids() {
  return {{.dtype = DType::kBf16,
           .axes = {{.dim = "tokens", .values = {1, 64, 512, 2048, 8192, 32768}},
                    {.dim = "hidden", .values = {2048, 4096, 5120, 7168}},
                    {.dim = "experts_total", .values = {8, 16, 64, 128, 256}}}}};
}

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  if (op.dtype != DType::kBf16) {
    throw std::invalid_argument("routing_scores takes bf16, not " + std::string(to_text(op.dtype)));
  }
  return std::make_unique<RoutingScoresCase>(op, options);
}

}  // namespace

Launch bind_routing_scores(const BindContext& context);  // bind.cpp

GpuKernel routing_scores_gpu() {
  return {.name = "routing_scores",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_routing_scores};
}

}  // namespace orrery
