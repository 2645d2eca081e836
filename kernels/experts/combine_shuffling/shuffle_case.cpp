#include "kernels/experts/combine_shuffling/shuffle_case.h"

#include <random>
#include <stdexcept>

#include "kernels/experts/combine_shuffling/combine_shuffling.h"
#include "kernels/experts/combine_shuffling/reference.h"
#include "kernels/harness/operand_sets.h"

namespace orrery {
namespace {

constexpr std::int64_t kSpareRows = 5;

reference::ShuffleSizes sizes_of(const KernelOp& op, bool combines) {
  const std::int64_t groups = dim(op.dims, "groups");
  return {.ranks = dim(op.dims, "ranks"),
          .experts = variant(op.dims, "experts", groups),
          .groups = groups,
          .first = variant(op.dims, "first"),
          .bound = variant(op.dims, "bound"),
          .holds_all = combines};
}

// `rows` rows in slices of this rank's experts as they fall, or all in the last slice; in those of
// other experts up to three each.
std::vector<std::int32_t> make_counts(const reference::ShuffleSizes& sizes, std::int64_t rows,
                                      bool one_expert) {
  std::mt19937_64 random(1);
  std::vector<std::int32_t> counts(static_cast<std::size_t>(sizes.ranks * sizes.experts));
  constexpr std::uint64_t kOthers = 4;
  if (sizes.bound > 0) {
    for (std::int32_t& count : counts) count = static_cast<std::int32_t>(random() % kOthers);
  }
  const auto at = [&](std::int64_t rank, std::int64_t group) -> std::int32_t& {
    return counts[static_cast<std::size_t>(rank * sizes.experts + sizes.first + group)];
  };
  for (std::int64_t rank = 0; rank < sizes.ranks; ++rank) {
    for (std::int64_t group = 0; group < sizes.groups; ++group) at(rank, group) = 0;
  }
  const auto slices = static_cast<std::uint64_t>(sizes.ranks * sizes.groups);
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto slice = static_cast<std::int64_t>(one_expert ? slices - 1 : random() % slices);
    ++at(slice / sizes.groups, slice % sizes.groups);
  }
  return counts;
}

// T is bf16 or fp8.
template <typename T>
class ShuffleCase final : public KernelCase {
 public:
  ShuffleCase(const KernelOp& op, const CaseOptions& options, bool combines)
      : combines_(combines),
        hidden_(static_cast<std::size_t>(dim(op.dims, "hidden"))),
        sizes_(sizes_of(op, combines)),
        made_(make_counts(sizes_, dim(op.dims, "rows"), variant(op.dims, "one_expert") != 0)),
        order_(reference::shuffled_rows(made_, sizes_)),
        spare_(options.vary && (combines || sizes_.bound == 0) ? kSpareRows : 0),
        from_rows_(combines ? rank_major_rows() : num_rows()),
        to_rows_((combines ? num_rows() : rank_major_rows()) + spare_),
        from_(static_cast<std::size_t>(from_rows_) * hidden_, options.seed, options.sets),
        from_scales_(kScales ? static_cast<std::size_t>(from_rows_) : 0, options.seed + 1,
                     options.sets),
        to_(static_cast<std::size_t>(to_rows_) * hidden_, options.sets),
        to_scales_(kScales ? static_cast<std::size_t>(to_rows_) : 0, options.sets),
        counts_(device_copy<std::int32_t>(made_)),
        group_counts_(static_cast<std::size_t>(sizes_.groups), 1),
        num_rows_(1, 1) {}

  void launch(const cuda::Stream& stream, int set) override {
    const ShuffledCounts counts{.counts = counts_.get(),
                                .ranks = sizes_.ranks,
                                .experts = sizes_.experts,
                                .groups = sizes_.groups,
                                .first = sizes_.first,
                                .bound = sizes_.bound};
    const ShuffledRows rows{.from = from_[set],
                            .to = to_[set],
                            .from_scales = kScales ? from_scales_[set] : nullptr,
                            .to_scales = kScales ? to_scales_[set] : nullptr,
                            .from_rows = from_rows_,
                            .to_rows = to_rows_,
                            .row_bytes = hidden_ * sizeof(T)};
    if (combines_) return combine_shuffling(stream, counts, rows, group_counts_[0], num_rows_[0]);
    split_shuffling(stream, counts, rows);
  }
  void reset(const cuda::Stream& stream) override {
    from_.reset(stream);
    from_scales_.reset(stream);
    to_.reset(stream);
    to_scales_.reset(stream);
    group_counts_.reset(stream);
    num_rows_.reset(stream);
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    std::vector<Difference> found;
    compare("rows", to_.host(stream), from_.made(), hidden_, found);
    if (kScales) compare("scales", to_scales_.host(stream), from_scales_.made(), 1, found);
    if (combines_) {
      const auto groups = reference::group_counts(made_, sizes_);
      found.push_back(difference("counts", group_counts_.host(stream),
                                 std::vector<double>(groups.begin(), groups.end()), 0));
      found.push_back(difference("num_rows", num_rows_.host(stream),
                                 std::vector<double>{static_cast<double>(num_rows())}, 0));
    }
    return found;
  }
  std::vector<Tile> tiles() override {
    if (order_.empty()) return {};
    const std::size_t last = order_.size() - 1;
    const auto moved = static_cast<std::size_t>(order_[last]);
    return {to_.tile("the last row written", (combines_ ? last : moved) * hidden_, hidden_),
            from_.tile("the last row read", (combines_ ? moved : last) * hidden_, hidden_)};
  }
  [[nodiscard]] int num_sets() const override { return from_.num_sets(); }

 private:
  static constexpr bool kScales = sizeof(T) == 1;

  [[nodiscard]] std::int64_t num_rows() const { return std::ssize(order_); }
  [[nodiscard]] std::int64_t rank_major_rows() const {
    return sizes_.bound > 0 ? sizes_.ranks * sizes_.bound : num_rows();
  }
  // Each row where it belongs, and how many elements elsewhere have been written.
  void compare(const std::string& what, std::vector<double> to, const std::vector<double>& from,
               std::size_t columns, std::vector<Difference>& found) const {
    if (combines_) {
      const std::size_t extra = cut_written(to, order_.size() * columns);
      found.push_back({.what = what + " beyond", .error = static_cast<double>(extra)});
      found.push_back(difference(what, to, reference::take_rows(from, order_, columns), 0));
      return;
    }
    found.push_back(difference(what, reference::take_rows(to, order_, columns), from, 0));
    const auto written = static_cast<std::size_t>(
        std::ranges::count_if(to, [](double value) { return !std::isnan(value); }));
    found.push_back({.what = what + " beyond",
                     .error = static_cast<double>(written) - static_cast<double>(from.size())});
  }

  bool combines_;
  std::size_t hidden_;
  reference::ShuffleSizes sizes_;
  std::vector<std::int32_t> made_;
  std::vector<std::int64_t> order_;
  std::int64_t spare_;
  std::int64_t from_rows_;
  std::int64_t to_rows_;
  InputSets<T> from_;
  InputSets<float> from_scales_;
  OutputSets<T> to_;
  OutputSets<float> to_scales_;
  cuda::DeviceBuffer<std::int32_t> counts_;
  OutputSets<std::int32_t> group_counts_;
  OutputSets<std::int32_t> num_rows_;
};

KernelOp op(const std::string& kernel, DType dtype, const Dims& dims) {
  constexpr std::array kNames{"rows", "hidden", "ranks", "groups"};
  KernelOp result{.kernel = kernel, .dtype = dtype, .dims = dims};
  for (std::size_t i = 0; i < kNames.size(); ++i) result.dims[i].name = kNames[i];
  return result;
}

}  // namespace

std::unique_ptr<KernelCase> make_shuffle_case(const KernelOp& op, const CaseOptions& options,
                                              bool combines) {
  if (op.dtype == DType::kBf16) return std::make_unique<ShuffleCase<bf16>>(op, options, combines);
  if (op.dtype == DType::kFp8) return std::make_unique<ShuffleCase<fp8>>(op, options, combines);
  throw std::invalid_argument(op.kernel + " takes bf16 and fp8, not " +
                              std::string(to_text(op.dtype)));
}

// One element; no rows; odd widths (byte by byte); 1, 2, 4, 8 and 64 ranks; more slices than a
// block has threads; all rows in one slice; padded with this rank's experts first, in the middle
// and last, and with no rows in any of them.
std::vector<KernelOp> shuffle_check_ops(const std::string& kernel) {
  std::vector<KernelOp> ops;
  const Dim one{"one_expert", 1};
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    const std::vector<Dims> all = {
        {{"", 1}, {"", 1}, {"", 1}, {"", 1}},
        {{"", 0}, {"", 64}, {"", 4}, {"", 4}},
        {{"", 57}, {"", 2731}, {"", 2}, {"", 3}},
        {{"", 300}, {"", 5120}, {"", 1}, {"", 16}},
        {{"", 3001}, {"", 528}, {"", 4}, {"", 4}},
        {{"", 999}, {"", 7}, {"", 8}, {"", 16}},
        {{"", 5000}, {"", 128}, {"", 64}, {"", 16}},
        {{"", 700}, {"", 2064}, {"", 8}, {"", 16}, one},
        {{"", 301}, {"", 80}, {"", 2}, {"", 8}, {"bound", 401}, {"experts", 16}, {"first", 0}},
        {{"", 1301}, {"", 5120}, {"", 4}, {"", 4}, {"bound", 600}, {"experts", 16}, {"first", 8}},
        {{"", 900}, {"", 33}, {"", 8}, {"", 16}, {"bound", 800}, {"experts", 128}, {"first", 112}},
        {{"", 0}, {"", 48}, {"", 8}, {"", 2}, {"bound", 64}, {"experts", 16}, {"first", 2}},
        {{"", 400}, {"", 48}, {"", 4}, {"", 2}, {"bound", 430}, {"experts", 8}, {"first", 6}, one},
    };
    for (const Dims& dims : all) ops.push_back(op(kernel, dtype, dims));
  }
  return ops;
}

std::vector<KernelOp> shuffle_bench_ops(const std::string& kernel) {
  std::vector<KernelOp> ops;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    for (const std::int64_t rows : {1, 128, 1024, 16384}) {
      ops.push_back(op(kernel, dtype, {{"", rows}, {"", 5120}, {"", 4}, {"", 4}}));
    }
  }
  ops.push_back(op(kernel, DType::kBf16, {{"", 16384}, {"", 7168}, {"", 8}, {"", 32}}));
  ops.push_back(op(kernel, DType::kBf16,
                   {{"", 128}, {"", 5120}, {"", 4}, {"", 4}, {"bound", 256}, {"experts", 16}}));
  ops.push_back(op(kernel, DType::kBf16,
                   {{"", 16384}, {"", 5120}, {"", 4}, {"", 4}, {"bound", 16384}, {"experts", 16}}));
  return ops;
}

std::vector<Grid> shuffle_grids() {
  std::vector<Grid> all;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    all.push_back({.dtype = dtype,
                   .axes = {{.dim = "rows", .values = {1, 16, 256, 4096, 32768}},
                            {.dim = "hidden", .values = {1024, 2048, 4096, 5120, 7168}},
                            {.dim = "ranks", .values = {2, 8}},
                            {.dim = "groups", .values = {2, 32}}}});
  }
  return all;
}

}  // namespace orrery
