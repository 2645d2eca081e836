#include "kernels/experts/gather_mul/reference.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "kernels/binding/kernel_call.h"

namespace orrery::reference {

std::vector<double> gather_mul(std::span<const double> x, std::span<const std::int32_t> row_token,
                               std::span<const double> row_weight, std::size_t hidden) {
  if (hidden == 0 || x.size() % hidden != 0 ||
      (!row_weight.empty() && row_weight.size() < row_token.size())) {
    throw std::invalid_argument("gather_mul: x is not whole rows, or a row has no weight");
  }
  const auto tokens = static_cast<std::int64_t>(x.size() / hidden);
  std::vector<double> xs(row_token.size() * hidden);
  for (std::size_t row = 0; row < row_token.size(); ++row) {
    if (row_token[row] < 0 || row_token[row] >= tokens) continue;
    const double weight = row_weight.empty() ? 1 : row_weight[row];
    const std::size_t token = static_cast<std::size_t>(row_token[row]) * hidden;
    for (std::size_t i = 0; i < hidden; ++i) xs[row * hidden + i] = x[token + i] * weight;
  }
  return xs;
}

std::vector<double> padded_groups(std::span<const double> rows,
                                  std::span<const std::int32_t> counts, std::size_t capacity,
                                  std::size_t hidden) {
  std::vector<double> padded(counts.size() * capacity * hidden);
  std::size_t begin = 0;
  for (std::size_t group = 0; group < counts.size(); ++group) {
    const auto count = static_cast<std::size_t>(std::max(counts[group], 0));
    if ((begin + count) * hidden > rows.size()) {
      throw std::invalid_argument("padded_groups: fewer rows than counts say");
    }
    const auto kept = rows.subspan(begin * hidden, std::min(count, capacity) * hidden);
    std::ranges::copy(kept,
                      padded.begin() + static_cast<std::ptrdiff_t>(group * capacity * hidden));
    begin += count;
  }
  return padded;
}

Results gather_mul_reference(const KernelCall& call) {
  const auto hidden = static_cast<std::size_t>(size_of(call, "hidden"));
  const Values weights = optional_read(call, "row_weight");
  Values rows = gather_mul(read(call, "x"), integers_read(call, "row_token"), weights, hidden);
  const std::vector<Axis>& axes = tensor_written(call, "xs").axes;
  if (axes.size() == 2) return {std::move(rows)};
  return {padded_groups(rows, integers_read(call, "counts"), static_cast<std::size_t>(axes[1].size),
                        hidden)};
}

}  // namespace orrery::reference
