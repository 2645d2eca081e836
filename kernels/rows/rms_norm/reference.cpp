#include "kernels/rows/rms_norm/reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/binding/kernel_call.h"

namespace orrery::reference {

std::vector<double> rms_norm(std::span<const double> x, std::span<const double> weight,
                             double epsilon) {
  const std::size_t hidden = weight.size();
  if (hidden == 0 || x.size() % hidden != 0) {
    throw std::invalid_argument("rms_norm: x is not whole rows of weight's length");
  }
  std::vector<double> y(x.size());
  for (std::size_t begin = 0; begin < x.size(); begin += hidden) {
    const auto row = x.subspan(begin, hidden);
    const double squares = std::inner_product(row.begin(), row.end(), row.begin(), 0.0);
    const double rms = std::sqrt(squares / static_cast<double>(hidden) + epsilon);
    for (std::size_t i = 0; i < hidden; ++i) y[begin + i] = row[i] / rms * weight[i];
  }
  return y;
}

namespace {

// Rows of query, key and value heads, of which all but the values are normed each by itself, with
// one gain for query heads and one for key heads.
Results norm_heads(const KernelCall& call) {
  const std::int64_t tokens = size_of(call, "tokens");
  const std::int64_t width = size_of(call, "hidden");
  const std::span<const double> gains = read(call, "gain");
  const auto head_dim = static_cast<std::int64_t>(gains.size()) / 2;
  Values x = read(call, "x");
  const std::int64_t stride = static_cast<std::int64_t>(x.size()) / tokens;
  const std::int64_t queries = width - (stride - width);  // as many values as keys follow
  for (std::int64_t row = 0; row < tokens; ++row) {
    for (std::int64_t at = 0; at < width; at += head_dim) {
      const auto head = x.begin() + row * stride + at;
      const Values normed =
          rms_norm(Values(head, head + head_dim),
                   gains.subspan(at < queries ? 0 : head_dim, head_dim), call.numbers.norm_epsilon);
      std::ranges::copy(normed, head);
    }
  }
  return {std::move(x)};
}

}  // namespace

Results rms_norm_reference(const KernelCall& call) {
  if (call.op.writes[0] == call.op.reads[0]) return norm_heads(call);
  const Values& gain = read(call, "gain");
  if (static_cast<std::int64_t>(gain.size()) != size_of(call, "hidden")) {
    refuse(call, "has a gain of " + std::to_string(gain.size()) + " for rows of " +
                     std::to_string(size_of(call, "hidden")));
  }
  return {rms_norm(columns_of_view(call, "x"), gain, call.numbers.norm_epsilon)};
}

}  // namespace orrery::reference
