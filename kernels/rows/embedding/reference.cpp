#include "kernels/rows/embedding/reference.h"

#include <algorithm>

#include "kernels/binding/kernel_call.h"

namespace orrery::reference {

std::vector<double> embedding(std::span<const std::int32_t> ids, std::span<const double> table,
                              std::size_t hidden) {
  std::vector<double> y(ids.size() * hidden);
  for (std::size_t token = 0; token < ids.size(); ++token) {
    const auto id = static_cast<std::size_t>(ids[token]);
    if (ids[token] < 0 || (id + 1) * hidden > table.size()) continue;
    std::ranges::copy(table.subspan(id * hidden, hidden),
                      y.begin() + static_cast<std::ptrdiff_t>(token * hidden));
  }
  return y;
}

Results embedding_reference(const KernelCall& call) {
  std::vector<std::int32_t> ids = call.part.token_ids;
  for (std::int32_t& id : ids) id -= static_cast<std::int32_t>(call.first_vocab_row);
  return {embedding(ids, read(call, "table"), static_cast<std::size_t>(size_of(call, "hidden")))};
}

}  // namespace orrery::reference
