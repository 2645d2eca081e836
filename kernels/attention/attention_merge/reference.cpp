#include "kernels/attention/attention_merge/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/binding/kernel_call.h"

namespace orrery::reference {
namespace {

// All parts of an operand one behind the other.
Values joined(const KernelCall& call, std::string_view slot) {
  Values all;
  for (std::size_t i = 0; i < call.reads.size(); ++i) {
    if (call.spec.slots[call.slots.reads[i]].name != slot) continue;
    all.insert(all.end(), call.reads[i]->begin(), call.reads[i]->end());
  }
  return all;
}

}  // namespace

// out = sum of exp(lse - largest) part / sum of exp(lse - largest)
std::vector<double> attention_merge(std::span<const double> x, std::span<const double> lse,
                                    std::int64_t parts, std::int64_t head_dim) {
  const std::size_t rows = lse.size() / static_cast<std::size_t>(parts);
  const auto width = static_cast<std::size_t>(head_dim);
  std::vector<double> out(rows * width);
  for (std::size_t row = 0; row < rows; ++row) {
    double largest = -std::numeric_limits<double>::infinity();
    for (std::size_t at = row; at < lse.size(); at += rows) largest = std::max(largest, lse[at]);
    if (std::isinf(largest)) continue;  // a row that pads the step
    double sum = 0;
    for (std::size_t at = row; at < lse.size(); at += rows) {
      if (std::isinf(lse[at])) continue;
      const double weight = std::exp(lse[at] - largest);
      sum += weight;
      for (std::size_t i = 0; i < width; ++i) out[row * width + i] += weight * x[at * width + i];
    }
    for (std::size_t i = 0; i < width; ++i) out[row * width + i] /= sum;
  }
  return out;
}

Results attention_merge_reference(const KernelCall& call) {
  Values out = attention_merge(joined(call, "parts"), joined(call, "lse"), size_of(call, "parts"),
                               size_of(call, "head_dim"));
  out.resize(zeros_written(call, "out").size());
  return {std::move(out)};
}

}  // namespace orrery::reference
