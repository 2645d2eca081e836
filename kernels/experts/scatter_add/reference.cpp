#include "kernels/experts/scatter_add/reference.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "kernels/binding/kernel_call.h"

namespace orrery::reference {

std::vector<double> scatter_add(std::span<const double> base, std::span<const double> y,
                                std::span<const std::int32_t> token_rows, std::size_t topk,
                                std::span<const double> row_weight, std::size_t hidden) {
  if (hidden == 0 || topk == 0 || token_rows.size() % topk != 0 || y.size() % hidden != 0 ||
      (!base.empty() && base.size() != token_rows.size() / topk * hidden) ||
      (!row_weight.empty() && row_weight.size() < y.size() / hidden)) {
    throw std::invalid_argument("scatter_add: sizes that do not fit");
  }
  const auto rows = static_cast<std::int64_t>(y.size() / hidden);
  std::vector<double> out(base.begin(), base.end());
  out.resize(token_rows.size() / topk * hidden);
  for (std::size_t choice = 0; choice < token_rows.size(); ++choice) {
    if (token_rows[choice] < 0 || token_rows[choice] >= rows) continue;
    const auto row = static_cast<std::size_t>(token_rows[choice]);
    const double weight = row_weight.empty() ? 1 : row_weight[row];
    for (std::size_t i = 0; i < hidden; ++i) {
      out[choice / topk * hidden + i] += weight * y[row * hidden + i];
    }
  }
  return out;
}

std::vector<double> without_padding(std::span<const double> y, std::span<const std::int32_t> counts,
                                    std::size_t groups, std::size_t hidden) {
  if (groups == 0 || hidden == 0 || counts.size() % groups != 0 ||
      y.size() % (groups * hidden) != 0) {
    throw std::invalid_argument("without_padding: sizes that do not fit");
  }
  const std::size_t per_group = counts.size() / groups;
  const std::size_t stride = y.size() / groups;
  std::vector<double> rows;
  for (std::size_t group = 0; group < groups; ++group) {
    const auto of_group = counts.subspan(group * per_group, per_group);
    const std::int64_t count = std::accumulate(of_group.begin(), of_group.end(), std::int64_t{0});
    const std::size_t elements = static_cast<std::size_t>(count) * hidden;
    if (count < 0 || elements > stride) {
      throw std::invalid_argument("without_padding: a group that is longer than its bound");
    }
    const auto kept = y.subspan(group * stride, elements);
    rows.insert(rows.end(), kept.begin(), kept.end());
  }
  return rows;
}

Results scatter_add_reference(const KernelCall& call) {
  const auto hidden = static_cast<std::size_t>(size_of(call, "hidden"));
  const std::vector<Axis>& axes = tensor_read(call, "y").axes;
  const Values weights = optional_read(call, "row_weight");
  const Values base = optional_read(call, "base");
  Values y = read(call, "y");
  if (axes.size() == 3) {
    y = without_padding(y, integers_read(call, "counts"), static_cast<std::size_t>(axes[0].size),
                        hidden);
  }
  const auto topk = static_cast<std::size_t>(columns_read(call, "token_rows"));
  return {scatter_add(base, y, integers_read(call, "token_rows"), topk, weights, hidden)};
}

}  // namespace orrery::reference
