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

// out = sum of exp(lse - largest) part / sum of exp(lse - largest); a part without keys has a
// log-sum-exp of -infinity and no weight.
Results attention_merge_reference(const KernelCall& call) {
  const auto parts = static_cast<std::size_t>(size_of(call, "parts"));
  const auto head_dim = static_cast<std::size_t>(size_of(call, "head_dim"));
  const Values x = joined(call, "parts");
  const Values lse = joined(call, "lse");
  const std::size_t rows = lse.size() / parts;  // of heads
  Values out = zeros_written(call, "out");
  for (std::size_t row = 0; row < rows; ++row) {
    double largest = -std::numeric_limits<double>::infinity();
    for (std::size_t part = 0; part < parts; ++part) {
      largest = std::max(largest, lse[part * rows + row]);
    }
    if (std::isinf(largest)) continue;  // a row that pads the step
    double sum = 0;
    for (std::size_t part = 0; part < parts; ++part) {
      const double weight = std::exp(lse[part * rows + row] - largest);
      sum += weight;
      for (std::size_t i = 0; i < head_dim; ++i) {
        out[row * head_dim + i] += weight * x[(part * rows + row) * head_dim + i];
      }
    }
    for (std::size_t i = 0; i < head_dim; ++i) out[row * head_dim + i] /= sum;
  }
  return {std::move(out)};
}

}  // namespace orrery::reference
