#include "kernels/experts/grouped_gemm_gather/reference.h"

#include <utility>

#include "kernels/binding/kernel_call.h"
#include "kernels/experts/gather_mul/reference.h"
#include "kernels/experts/grouped_gemm/reference.h"

namespace orrery::reference {

void grouped_gemm_gather(std::span<const double> x, const GatheredRows& rows,
                         std::span<const double> w, std::span<const std::int32_t> counts,
                         std::int64_t n, std::int64_t k, std::span<double> y) {
  grouped_gemm(gather_mul(x, rows.tokens, rows.weights, static_cast<std::size_t>(k)), w, counts, n,
               k, y);
}

Results grouped_gemm_gather_reference(const KernelCall& call) {
  const std::int64_t n = size_of(call, "n");
  const std::vector<std::int32_t> tokens = integers_read(call, "row_token");
  const Values weights = optional_read(call, "row_weight");
  Values y(tokens.size() * static_cast<std::size_t>(n));
  grouped_gemm_gather(read(call, "x"), {.tokens = tokens, .weights = weights}, read(call, "w"),
                      integers_read(call, "counts"), n, size_of(call, "k"), y);
  return {std::move(y)};
}

}  // namespace orrery::reference
