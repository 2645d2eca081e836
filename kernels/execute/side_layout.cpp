#include "kernels/execute/side_layout.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>

#include "sim/plan/sides.h"

namespace orrery {
namespace {

constexpr std::int64_t kAlignment = 256;

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t row_bytes_in(const Tensor& tensor) {
  return aligned(static_cast<std::int64_t>(std::ceil(bytes_of(tensor).value())));
}

std::int64_t scale_bytes_in(const Tensor& tensor) {
  if (tensor.dtype != DType::kFp8 || tensor.axes.empty()) return 0;
  const std::int64_t rows = num_elements(tensor) / tensor.axes.back().size;
  return aligned(rows * static_cast<std::int64_t>(sizeof(float)));
}

// First receiver, micro-batch and place among what the op writes.
using LandingKey = std::tuple<int, int, std::size_t>;
struct Landing {
  std::int64_t rows = 0;  // bytes
  std::int64_t scales = 0;
  std::int64_t first = 0;
};

template <typename Visit>
void for_each_landing(const Plan& plan, const Visit& visit) {
  for (const Op& op : plan.ops()) {
    const std::optional<Sides> sides = one_way(plan, op);
    if (!sides) continue;
    for (std::size_t i = 0; i < op.writes.size(); ++i) {
      const auto id = static_cast<std::size_t>(op.writes[i].tensor);
      visit(LandingKey(sides->receivers.front(), micro_batch_of(op), i), id, plan.tensors()[id]);
    }
  }
}

}  // namespace

SideLayout side_layout(const Plan& plan) {
  SideLayout layout{.rows = std::vector<std::int64_t>(plan.tensors().size(), -1),
                    .scales = std::vector<std::int64_t>(plan.tensors().size(), -1),
                    .first_transfer = std::vector<std::int64_t>(plan.ops().size(), -1)};
  std::map<LandingKey, Landing> landings;
  for_each_landing(plan, [&](const LandingKey& key, std::size_t, const Tensor& tensor) {
    Landing& landing = landings[key];
    landing.rows = std::max(landing.rows, row_bytes_in(tensor));
    landing.scales = std::max(landing.scales, scale_bytes_in(tensor));
  });
  for (auto& [key, landing] : landings) {
    landing.first = layout.bytes;
    layout.bytes += landing.rows + landing.scales;
  }
  for_each_landing(plan, [&](const LandingKey& key, std::size_t id, const Tensor& tensor) {
    const Landing& landing = landings.at(key);
    layout.rows[id] = landing.first;
    if (scale_bytes_in(tensor) > 0) layout.scales[id] = landing.first + landing.rows;
  });
  for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id) {
    if (!one_way(plan, plan.ops()[static_cast<std::size_t>(id)])) continue;
    layout.first_transfer[static_cast<std::size_t>(id)] = layout.num_transfers;
    layout.num_transfers += plan.multiplicity(id);
  }
  return layout;
}

}  // namespace orrery
