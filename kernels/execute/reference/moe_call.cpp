#include "kernels/execute/reference/moe_call.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "kernels/dense/gemm/reference.h"
#include "kernels/execute/reference/call_operands.h"
#include "kernels/experts/combine_shuffling/reference.h"
#include "kernels/experts/gather_mul/reference.h"
#include "kernels/experts/grouped_gemm/reference.h"
#include "kernels/experts/index_shuffling/reference.h"
#include "kernels/experts/routing_scores/reference.h"
#include "kernels/experts/scatter_add/reference.h"

namespace orrery::reference {
namespace {

using Integers = std::vector<std::int32_t>;

const Tensor& read_tensor(const KernelCall& call, std::size_t index) {
  return tensor_of(call, call.op.reads.at(index));
}

Integers integers(const Values& values) {
  Integers result(values.size());
  std::ranges::transform(values, result.begin(),
                         [](double value) { return static_cast<std::int32_t>(value); });
  return result;
}
Integers read_integers(const KernelCall& call, std::size_t index) {
  return integers(read(call, index));
}

// Of what is read from place `first` on, the first of that dtype and number of axes; empty: none.
Values optional_read(const KernelCall& call, std::size_t first, DType dtype, std::size_t axes) {
  for (std::size_t i = first; i < call.op.reads.size(); ++i) {
    const Tensor& tensor = read_tensor(call, i);
    if (tensor.dtype == dtype && tensor.axes.size() == axes) return read(call, i);
  }
  return {};
}

template <typename T>
Values padded(const std::vector<T>& values, std::int64_t size, double padding) {
  Values result(static_cast<std::size_t>(size), padding);
  std::copy_n(values.begin(), std::min(values.size(), result.size()), result.begin());
  return result;
}

std::int64_t sum(const Integers& counts) {
  std::int64_t total = 0;
  for (const std::int32_t count : counts) total += count;
  return total;
}

Results run_routing_scores(const KernelCall& call) {
  const std::int64_t experts = size_of(call, "experts_total");
  const Values bias = optional_read(call, 2, DType::kBf16, 1);
  const bool is_sigmoid = call.numbers.routing.score == RoutingScore::kSigmoid;
  Values scores = routing_scores(
      read(call, 0), read(call, 1), bias,
      {.tokens = size_of(call, "tokens"),
       .hidden = size_of(call, "hidden"),
       .experts_total = experts,
       .activation = is_sigmoid ? RouterActivation::kSigmoid : RouterActivation::kSoftmax});
  if (call.given_scores == nullptr) return {std::move(scores)};
  if (call.given_scores->size() != scores.size()) {
    refuse(call, "was given " + std::to_string(call.given_scores->size()) + " scores, expected " +
                     std::to_string(scores.size()));
  }
  const bool is_whole = std::ssize(scores) == call.part.rows.tokens * experts;
  const std::size_t count =
      is_whole ? static_cast<std::size_t>(call.part.num_tokens * experts) : scores.size();
  for (std::size_t i = 0; i < count; ++i) {
    const double given = (*call.given_scores)[i];
    const double apart = std::abs(given - scores[i]);
    *call.score_difference =
        std::isfinite(apart) ? std::max(*call.score_difference, apart) : INFINITY;
    scores[i] = given;
  }
  return {std::move(scores)};
}

Results run_index_shuffling(const KernelCall& call) {
  const Routing& routing = call.numbers.routing;
  const std::int64_t experts = size_of(call, "experts");
  const std::int64_t experts_total = size_of(call, "experts_total");
  const Values bias = call.op.reads.size() > 1 ? read(call, 1) : Values{};
  const IndexShuffling found =
      index_shuffling(read(call, 0), bias,
                      {.tokens = size_of(call, "tokens"),
                       .experts_total = experts_total,
                       .topk = size_of(call, "topk"),
                       .groups = size_of(call, "groups"),
                       .topk_groups = routing.topk_groups,
                       .group_score = bias.empty() ? GroupScore::kBest : GroupScore::kBestTwo,
                       .first_expert = call.first_expert / experts * experts,
                       .experts = experts,
                       .normalises = routing.normalises,
                       .scale = routing.scale});
  const std::int64_t rows = num_elements(tensor_of(call, call.op.writes[2]));
  return {padded(found.counts, experts, 0),
          {static_cast<double>(sum(found.counts))},
          padded(found.row_token, rows, -1),
          padded(found.row_weight, rows, 0),
          padded(found.token_rows, std::ssize(found.token_rows), -1)};
}

// reads x, row_token, num_rows or counts [, row_weight]
Results run_gather_mul(const KernelCall& call) {
  const auto hidden = static_cast<std::size_t>(size_of(call, "hidden"));
  const Values weights = optional_read(call, 3, DType::kFp32, 1);
  Values rows = gather_mul(read(call, 0), read_integers(call, 1), weights, hidden);
  const std::vector<Axis>& axes = tensor_of(call, call.op.writes[0]).axes;
  if (axes.size() == 2) return {std::move(rows)};
  return {
      padded_groups(rows, read_integers(call, 2), static_cast<std::size_t>(axes[1].size), hidden)};
}

// What an op of one expert leaves of what is there.
Values written_before(const KernelCall& call) {
  const Values* const before = call.written.at(0);
  if (before != nullptr && !before->empty()) return *before;
  return Values(static_cast<std::size_t>(num_elements(tensor_of(call, call.op.writes[0]))));
}

// Counts in which all experts but that of the op have no rows, and where its rows begin.
struct ExpertRows {
  std::int64_t first = 0;
  std::int64_t count = 0;
};
ExpertRows expert_rows(const KernelCall& call, const Integers& counts) {
  const auto expert = static_cast<std::size_t>(size_of(call, "expert"));
  ExpertRows rows{.count = counts.at(expert)};
  for (std::size_t i = 0; i < expert; ++i) rows.first += counts[i];
  return rows;
}

// reads x, row_token, counts [, row_weight]
Results run_expert_gather(const KernelCall& call) {
  const std::int64_t hidden = size_of(call, "hidden");
  const Values weights = optional_read(call, 3, DType::kFp32, 1);
  const Values rows =
      gather_mul(read(call, 0), read_integers(call, 1), weights, static_cast<std::size_t>(hidden));
  const ExpertRows own = expert_rows(call, read_integers(call, 2));
  Values result = written_before(call);
  std::copy_n(rows.begin() + own.first * hidden, own.count * hidden,
              result.begin() + own.first * hidden);
  return {std::move(result)};
}

Values multiplied(const KernelCall& call, std::int64_t rows) {
  const std::int64_t n = size_of(call, "n");
  Values y(static_cast<std::size_t>(rows * n));
  grouped_gemm(read(call, 0), read(call, 1), read_integers(call, 2), n, size_of(call, "k"), y);
  return y;
}

std::int64_t rows_of(const Tensor& tensor) {
  return num_elements(tensor) / tensor.axes.back().size;
}

Results run_grouped_gemm(const KernelCall& call) {
  return {multiplied(call, rows_of(read_tensor(call, 0)))};
}

// reads x, w, counts, row_token [, row_weight], out
Results run_grouped_gemm_scatter(const KernelCall& call) {
  const std::int64_t n = size_of(call, "n");
  const Values y = multiplied(call, rows_of(read_tensor(call, 0)));
  const std::int64_t num_rows = sum(read_integers(call, 2));
  const Integers tokens = read_integers(call, 3);
  const Values weights = optional_read(call, 4, DType::kFp32, 1);
  Values out = read(call, call.reads.size() - 1);
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const double weight = weights.empty() ? 1 : weights[static_cast<std::size_t>(row)];
    const std::int64_t token = tokens[static_cast<std::size_t>(row)];
    for (std::int64_t column = 0; column < n; ++column) {
      out[static_cast<std::size_t>(token * n + column)] +=
          weight * y[static_cast<std::size_t>(row * n + column)];
    }
  }
  return {std::move(out)};
}

// reads x, w, counts
Results run_expert_gemm(const KernelCall& call) {
  const std::int64_t n = size_of(call, "n");
  const ExpertRows own = expert_rows(call, read_integers(call, 2));
  const Values y = multiplied(call, rows_of(read_tensor(call, 0)));
  Values result = written_before(call);
  std::copy_n(y.begin() + own.first * n, own.count * n, result.begin() + own.first * n);
  return {std::move(result)};
}

// x [batch, m, k], w [batch, n, k]
Results run_batched_gemm(const KernelCall& call) {
  const std::int64_t m = size_of(call, "m");
  const std::int64_t n = size_of(call, "n");
  const std::int64_t k = size_of(call, "k");
  const std::span<const double> x = read(call, 0);
  const std::span<const double> w = read(call, 1);
  Values result;
  for (std::int64_t i = 0; i < size_of(call, "batch"); ++i) {
    const Values y = gemm(x.subspan(static_cast<std::size_t>(i * m * k), m * k),
                          w.subspan(static_cast<std::size_t>(i * n * k), n * k), m, n, k);
    result.insert(result.end(), y.begin(), y.end());
  }
  return {std::move(result)};
}

// reads y, token_rows [, counts] [, row_weight] [, base]
Results run_scatter_add(const KernelCall& call) {
  const auto hidden = static_cast<std::size_t>(size_of(call, "hidden"));
  const std::vector<Axis>& axes = read_tensor(call, 0).axes;
  const Values weights = optional_read(call, 2, DType::kFp32, 1);
  const Values base = optional_read(call, 2, DType::kBf16, 2);
  Values y = read(call, 0);
  if (axes.size() == 3) {
    Integers counts;
    for (std::size_t i = 2; i < call.op.reads.size(); ++i) {
      if (read_tensor(call, i).dtype == DType::kInt32) counts = read_integers(call, i);
    }
    y = without_padding(y, counts, static_cast<std::size_t>(axes[0].size), hidden);
  }
  const auto topk = static_cast<std::size_t>(read_tensor(call, 1).axes.back().size);
  return {scatter_add(base, y, read_integers(call, 1), topk, weights, hidden)};
}

// Of the tensor whose rows are in the order of ranks, and of the counts.
ShuffleSizes shuffle_sizes(const KernelCall& call, const Tensor& by_rank, bool combines) {
  const bool is_dense = by_rank.axes.size() == 2;
  const Tensor& counts = read_tensor(call, 1);
  const std::int64_t ranks = size_of(call, "ranks");
  const std::int64_t groups = size_of(call, "groups");
  const std::int64_t experts = num_elements(counts) / ranks;
  return {.ranks = ranks,
          .experts = experts,
          .groups = groups,
          .first = call.first_expert % experts,
          .bound = is_dense ? 0 : by_rank.axes[1].size,
          .holds_all = !is_dense && combines};
}

// reads recv, recv_counts; writes rows, counts, num_rows
Results run_combine_shuffling(const KernelCall& call) {
  const ShuffleSizes sizes = shuffle_sizes(call, read_tensor(call, 0), /*combines=*/true);
  const Integers counts = read_integers(call, 1);
  const Integers groups = group_counts(counts, sizes);
  const Values rows = take_rows(read(call, 0), shuffled_rows(counts, sizes),
                                static_cast<std::size_t>(size_of(call, "hidden")));
  return {padded(rows, num_elements(tensor_of(call, call.op.writes[0])), 0),
          padded(groups, std::ssize(groups), 0),
          {static_cast<double>(sum(groups))}};
}

// reads rows, recv_counts
Results run_split_shuffling(const KernelCall& call) {
  const Tensor& by_rank = tensor_of(call, call.op.writes[0]);
  const ShuffleSizes sizes = shuffle_sizes(call, by_rank, /*combines=*/false);
  const Integers counts = read_integers(call, 1);
  return {put_rows(read(call, 0), shuffled_rows(counts, sizes),
                   static_cast<std::size_t>(size_of(call, "hidden")),
                   Values(static_cast<std::size_t>(num_elements(by_rank))))};
}

struct Entry {
  std::string_view kernel;
  MoeReference run;
};
constexpr auto kEntries = std::to_array<Entry>({
    {"batched_gemm", run_batched_gemm},
    {"combine_shuffling", run_combine_shuffling},
    {"expert_gather", run_expert_gather},
    {"expert_gemm", run_expert_gemm},
    {"gather_mul", run_gather_mul},
    {"grouped_gemm", run_grouped_gemm},
    {"grouped_gemm_scatter", run_grouped_gemm_scatter},
    {"index_shuffling", run_index_shuffling},
    {"routing_scores", run_routing_scores},
    {"scatter_add", run_scatter_add},
    {"split_shuffling", run_split_shuffling},
});

}  // namespace

MoeReference find_moe_reference(std::string_view kernel) {
  const auto* const found = std::ranges::find(kEntries, kernel, &Entry::kernel);
  return found == kEntries.end() ? nullptr : found->run;
}

}  // namespace orrery::reference
