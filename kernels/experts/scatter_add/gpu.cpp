#include <array>

#include "kernels/experts/gather_mul/made_rows.h"
#include "kernels/experts/scatter_add/reference.h"
#include "kernels/experts/scatter_add/scatter_add.h"
#include "kernels/harness/operand_sets.h"

namespace orrery {
namespace {

constexpr std::int64_t kExperts = 128;

// Rows from several ranks lie in a group for each, unless a variant says otherwise.
std::int64_t groups_of(const Dims& dims) {
  const std::int64_t ranks = dim(dims, "ranks");
  return variant(dims, "groups", ranks > 1 ? ranks : 0);
}
std::int64_t experts_of(const Dims& dims) {
  const std::int64_t ranks = dim(dims, "ranks");
  const std::int64_t groups = groups_of(dims);
  if (groups == 0) return kExperts;
  return groups * variant(dims, "per_group", ranks > 1 ? kExperts / ranks : 1);
}

// Variants: "unweighed"; "in_place", onto base; "one_expert";
// "groups" of y, each "bound" rows long and of "per_group" experts.
class ScatterAddCase final : public KernelCase {
 public:
  ScatterAddCase(const KernelOp& op, const CaseOptions& options)
      : sizes_{.tokens = dim(op.dims, "tokens"),
               .rows = dim(op.dims, "rows"),
               .experts = experts_of(op.dims),
               .one_expert = variant(op.dims, "one_expert") != 0},
        hidden_(dim(op.dims, "hidden")),
        groups_(groups_of(op.dims)),
        bound_(variant(op.dims, "bound", sizes_.rows)),
        has_base_(dim(op.dims, "base") != 0),
        weighed_(variant(op.dims, "unweighed") == 0),
        in_place_(variant(op.dims, "in_place") != 0),
        topk_(make_rows(sizes_, 1).topk),
        y_(static_cast<std::size_t>((groups_ > 0 ? groups_ * bound_ : sizes_.rows) * hidden_),
           options.seed, options.sets),
        weights_(static_cast<std::size_t>(sizes_.rows), options.seed + 1, options.sets),
        base_(has_base_ ? elements() : 0, options.seed + 2, options.sets),
        out_(elements(), options.sets) {
    if (op.dtype != DType::kBf16) {
      throw std::invalid_argument("scatter_add takes bf16, not " + std::string(to_text(op.dtype)));
    }
    for (int set = 0; set < options.sets; ++set) {
      const MadeRows made = make_rows(sizes_, static_cast<std::uint64_t>(set) + 1);
      token_rows_.push_back(device_copy<std::int32_t>(made.token_rows));
      counts_.push_back(device_copy<std::int32_t>(made.counts));
    }
  }

  void launch(const cuda::Stream& stream, int set) override {
    const auto at = static_cast<std::size_t>(set);
    scatter_add(stream,
                {.y = y_[set],
                 .token_rows = token_rows_[at].get(),
                 .row_weight = weighed_ ? weights_[set] : nullptr,
                 .base = has_base_ ? base_[set] : nullptr,
                 .counts = counts_[at].get(),
                 .tokens = sizes_.tokens,
                 .topk = topk_,
                 .rows = sizes_.rows,
                 .hidden = hidden_,
                 .groups = groups_,
                 .bound = bound_,
                 .num_counts = sizes_.experts},
                in_place_ ? base_[set] : out_[set]);
  }
  void reset(const cuda::Stream& stream) override {
    y_.reset(stream);
    if (has_base_) base_.reset(stream);
    out_.reset(stream);
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    const MadeRows made = make_rows(sizes_, 1);
    const auto hidden = static_cast<std::size_t>(hidden_);
    std::vector<double> y = y_.made();
    if (groups_ > 0) {
      y = reference::without_padding(y, made.counts, static_cast<std::size_t>(groups_), hidden);
    }
    const auto ref =
        reference::scatter_add(has_base_ ? base_.made() : std::vector<double>{}, y, made.token_rows,
                               static_cast<std::size_t>(topk_),
                               weighed_ ? weights_.made() : std::vector<double>{}, hidden);
    return {difference("out", host_double(stream, in_place_ ? base_[0] : out_[0], elements()), ref,
                       kBf16Bound)};
  }
  std::vector<Tile> tiles() override {
    const auto hidden = static_cast<std::size_t>(hidden_);
    std::vector<Tile> tiles = {
        {.what = "a row of out",
         .data = (in_place_ ? base_[0] : out_[0]) + elements() / 2 / hidden * hidden,
         .bytes = hidden * sizeof(bf16),
         .is_output = true}};
    if (sizes_.rows > 0) {
      const auto counts = make_rows(sizes_, 1).counts;
      // The first row of the last group that has rows.
      const auto last =
          static_cast<std::int64_t>(
              counts.rend() - std::ranges::find_if(counts.rbegin(), counts.rend(),
                                                   [](std::int32_t count) { return count > 0; })) -
          1;
      const std::int64_t group = groups_ > 0 ? last / (sizes_.experts / groups_) : 0;
      tiles.push_back(
          y_.tile("rows of y", static_cast<std::size_t>(group * bound_ * hidden_), 4 * hidden));
    }
    if (has_base_ && !in_place_) tiles.push_back(base_.tile("a row of base", 0, hidden));
    return tiles;
  }
  [[nodiscard]] int num_sets() const override { return y_.num_sets(); }

 private:
  [[nodiscard]] std::size_t elements() const {
    return static_cast<std::size_t>(sizes_.tokens * hidden_);
  }

  RowSizes sizes_;
  std::int64_t hidden_;
  std::int64_t groups_;
  std::int64_t bound_;
  bool has_base_;
  bool weighed_;
  bool in_place_;
  std::int64_t topk_;
  InputSets<bf16> y_;
  InputSets<float> weights_;
  InputSets<bf16> base_;
  OutputSets<bf16> out_;
  std::vector<cuda::DeviceBuffer<std::int32_t>> token_rows_;
  std::vector<cuda::DeviceBuffer<std::int32_t>> counts_;
};

KernelOp op(std::int64_t tokens, std::int64_t rows, std::int64_t hidden, std::int64_t base,
            std::vector<Dim> variants = {}) {
  KernelOp result{
      .kernel = "scatter_add",
      .dims = {
          {"tokens", tokens}, {"rows", rows}, {"hidden", hidden}, {"base", base}, {"ranks", 1}}};
  result.dims.insert(result.dims.end(), variants.begin(), variants.end());
  return result;
}

// One element; no rows; odd widths; each number of rows for a token, all here or a part; in place
// and not; groups of one expert and of several, with room to spare, empty ones, all rows in the
// last.
std::vector<KernelOp> check_ops() {
  const Dim unweighed{"unweighed", 1};
  const Dim in_place{"in_place", 1};
  return {op(1, 1, 1, 0, {unweighed}),
          op(5, 0, 64, 1, {unweighed}),
          op(5, 0, 64, 0, {unweighed}),
          op(3, 3, 2731, 1),
          op(129, 129, 5120, 1, {unweighed}),
          op(129, 129, 5120, 1, {unweighed, in_place}),
          op(77, 154, 264, 0),
          op(300, 75, 264, 1, {in_place}),
          op(101, 404, 1032, 1),
          op(64, 192, 40, 0, {unweighed}),
          op(65, 520, 2048, 1),
          op(1003, 5015, 2056, 0),
          op(503, 503, 7168, 1, {unweighed}),
          op(33, 33, 72, 1, {unweighed, {"groups", 16}, {"bound", 33}}),
          op(33, 264, 72, 0, {{"groups", 128}, {"bound", 33}}),
          op(40, 40, 5120, 1, {unweighed, {"groups", 4}, {"bound", 45}, {"one_expert", 1}}),
          op(500, 1000, 1032, 1, {{"groups", 8}, {"per_group", 16}, {"bound", 1001}}),
          op(50, 400, 71, 0, {{"groups", 2}, {"per_group", 64}, {"bound", 400}}),
          op(3000, 3000, 264, 0, {unweighed, {"groups", 64}, {"per_group", 8}, {"bound", 3000}})};
}
std::vector<KernelOp> bench_ops() {
  const Dim unweighed{"unweighed", 1};
  std::vector<KernelOp> ops;
  for (const std::int64_t tokens : {1, 64, 128, 1024, 4096, 16384}) {
    ops.push_back(op(tokens, tokens, 5120, 1, {unweighed}));
  }
  ops.push_back(op(16384, 16384, 5120, 1));
  ops.push_back(op(16384, 16384, 5120, 1, {unweighed, {"in_place", 1}}));
  ops.push_back(op(16384, 16384, 5120, 0, {unweighed}));
  for (const std::int64_t topk : {2, 4, 8}) {
    ops.push_back(op(128, 128 * topk, 2048, 0));
    ops.push_back(op(8192, 8192 * topk, 2048, 0));
  }
  ops.push_back(op(8192, 65536, 7168, 1));
  ops.push_back(op(128, 128, 5120, 1, {unweighed, {"groups", 16}, {"bound", 128}}));
  ops.push_back(
      op(16384, 16384, 5120, 1, {unweighed, {"groups", 4}, {"per_group", 4}, {"bound", 8192}}));
  ops.push_back(op(8192, 65536, 2048, 1, {{"groups", 8}, {"per_group", 16}, {"bound", 16384}}));
  return ops;
}

bool has_choices(const Dims& dims) { return dim(dims, "rows") <= 8 * dim(dims, "tokens"); }

std::vector<Grid> grids() {
  return {{.axes = {{.dim = "tokens", .values = {1, 16, 256, 4096, 32768}},
                    {.dim = "rows", .values = {1, 16, 256, 4096, 32768, 131072}},
                    {.dim = "hidden", .values = {1024, 2048, 4096, 5120, 7168}},
                    {.dim = "base", .values = {0, 1}},
                    {.dim = "ranks", .values = {1}}},
           .accept = has_choices},
          {.axes = {{.dim = "tokens", .values = {1, 16, 256, 4096}},
                    {.dim = "rows", .values = {1, 16, 256, 4096, 32768}},
                    {.dim = "hidden", .values = {2048, 5120}},
                    {.dim = "base", .values = {0, 1}},
                    {.dim = "ranks", .values = {2, 4}}},
           .accept = has_choices}};
}

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  return std::make_unique<ScatterAddCase>(op, options);
}

}  // namespace

Launch bind_scatter_add(const BindContext& context);  // bind.cpp

GpuKernel scatter_add_gpu() {
  return {.name = "scatter_add",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_scatter_add};
}

}  // namespace orrery
