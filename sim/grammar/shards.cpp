#include "sim/grammar/shards.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace orrery {
namespace {

// Elements of a part that no place of `places` has.
std::int64_t num_missing(const SplitPart& part, const std::set<std::int64_t>& places) {
  std::int64_t held = 0;
  for (const std::int64_t place : places) {
    for (const AxisRange& range : ranges_at(part, place)) held += range.count;
  }
  return part.size - held;
}

int num_micro_batches(const std::vector<const SplitPart*>& parts) {
  int most = 1;
  for (const SplitPart* part : parts) {
    for (int i = 0; i < part->place.size(); ++i) {
      const auto [ways, stride] = part->place.digit(i);
      if (stride == kOfMicroBatch) most = std::max(most, ways);
    }
  }
  return most;
}

void check_axis(const Axis& axis, const Split& split) {
  if (local_size(split) == axis.size) return;
  throw std::invalid_argument("axis " + axis.name + " has size " + std::to_string(axis.size) +
                              " on each rank, expected " + std::to_string(local_size(split)) +
                              ", its share of " + std::to_string(whole_size(split)));
}

// Places of ranks, and micro-batches, that share tensors: one for each of `parts`.
std::set<std::vector<std::int64_t>> held_places(const Plan& plan, const Tensor& tensor,
                                                const std::vector<const SplitPart*>& parts) {
  std::set<std::vector<std::int64_t>> held;
  const int micro_batches = num_micro_batches(parts);
  for (const int rank : plan.ranks(tensor.ranks)) {
    for (int micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
      std::vector<std::int64_t> places;
      places.reserve(parts.size());
      for (const SplitPart* part : parts) places.push_back(part->place.of(rank, micro_batch));
      held.insert(std::move(places));
    }
  }
  return held;
}

}  // namespace

void check_shards(const Plan& plan, const Tensor& tensor) {
  std::vector<const SplitPart*> firsts;  // of each axis that is split
  for (const Axis& axis : tensor.axes) {
    const Split* const split = plan.split_of(axis);
    if (split == nullptr) continue;
    check_axis(axis, *split);
    for (const SplitPart& part : split->parts) {
      std::set<std::int64_t> places;
      for (const auto& held : held_places(plan, tensor, {&part})) places.insert(held.front());
      const std::int64_t missing = num_missing(part, places);
      if (missing == 0) continue;
      throw std::invalid_argument("axis " + axis.name + ": no rank has " + std::to_string(missing) +
                                  " of " + std::to_string(part.size) +
                                  " elements, expected all ranks together to have each");
    }
    if (split->parts.front().place.size() > 0) firsts.push_back(&split->parts.front());
  }
  if (firsts.size() < 2) return;
  const auto combinations = std::accumulate(firsts.begin(), firsts.end(), std::int64_t{1},
                                            [](std::int64_t product, const SplitPart* part) {
                                              return product * part->place.num_places();
                                            });
  const auto held = static_cast<std::int64_t>(held_places(plan, tensor, firsts).size());
  if (held == combinations) return;
  throw std::invalid_argument("its ranks have " + std::to_string(held) + " of " +
                              std::to_string(combinations) +
                              " combinations of shares along its axes, expected all");
}

void check_alike(const Plan& plan, const Op& op) {
  std::vector<const Axis*> split;
  for (const auto* views : {&op.reads, &op.writes}) {
    for (const TensorId id : *views) {
      for (const Axis& axis : plan.tensors()[static_cast<std::size_t>(id)].axes) {
        const Split* const found = plan.split_of(axis);
        if (found != nullptr && found->parts.front().place.size() > 0) split.push_back(&axis);
      }
    }
  }
  for (const Axis* axis : split) {
    const Axis& first =
        **std::ranges::find_if(split, [&](const Axis* other) { return other->name == axis->name; });
    const Place& place = plan.split_of(*axis)->parts.front().place;
    if (plan.split_of(first)->parts.front().place == place) continue;
    throw std::invalid_argument("its tensors have axis " + axis->name +
                                " split over ranks in two ways, expected one");
  }
}

}  // namespace orrery
