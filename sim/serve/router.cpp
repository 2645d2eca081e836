#include "sim/serve/router.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

#include "sim/units/nearest.h"
#include "sim/units/shown.h"

namespace orrery {
namespace {

// Above this much more work than the least loaded replica, in tokens and as a ratio, a cached
// prefix no longer decides. Assumption: of the size that cache-aware routers of engines use.
constexpr std::int64_t kImbalanceTokens = 16384;
constexpr double kImbalanceRatio = 1.5;

// The most tokens that are no imbalance beside `least`.
std::int64_t most_balanced(std::int64_t least) {
  // load > 1.5 least in floating point; loads are far below 2^52, where both sides are exact.
  const auto by_ratio = static_cast<std::int64_t>(kImbalanceRatio * static_cast<double>(least));
  return std::max(least + kImbalanceTokens, by_ratio);
}

constexpr std::array<RouterPolicy, 3> kPolicies = {{
    {RouterKind::kRoundRobin, "round_robin", "replicas in turn", true},
    {RouterKind::kLeastLoaded, "least_loaded", "fewest tokens left to compute", false},
    {RouterKind::kPrefixAware, "prefix_aware", "longest cached prefix unless overloaded", false},
}};

}  // namespace

Router::Router(RouterKind kind, std::span<const std::unique_ptr<Replica>> replicas)
    : kind_(kind), replicas_(replicas), loads_(replicas) {
  if (kind_ != RouterKind::kPrefixAware) return;
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    replicas_[i]->tell_prefixes(prefixes_, static_cast<std::int32_t>(i));
  }
}

std::size_t Router::choose(const Request& request, std::int64_t arrival, Seconds now) {
  switch (kind_) {
    case RouterKind::kRoundRobin:
      return static_cast<std::size_t>(arrival) % replicas_.size();
    case RouterKind::kLeastLoaded:
      return loads_.least(now).index;
    case RouterKind::kPrefixAware:
      break;
  }
  return prefix_aware(request, now);
}

void Router::changed(std::size_t index) {
  if (kind_ != RouterKind::kRoundRobin) loads_.changed(index);
}

// The replica with the longest cached prefix unless it has much more work than the least loaded
// one, which is taken when no other has a longer prefix than it; of equals the first.
std::size_t Router::prefix_aware(const Request& request, Seconds now) {
  const LoadIndex::Least least = loads_.least(now);
  const std::span<const std::uint64_t> hashes = request.block_hashes;
  const std::int64_t most = most_balanced(least.tokens);
  const auto at_least = static_cast<std::size_t>(replicas_[least.index]->num_cached_units(request));
  // No replica has more units than those in front of the first that none has.
  std::size_t units = 0;
  while (units < hashes.size() && !prefixes_.of(hashes[units]).empty()) ++units;
  // Whoever has `units` of them holds the last one of these; few have had another one evicted.
  for (; units > at_least; --units) {
    const auto prefix = hashes.first(units);
    for (const std::int32_t holder : prefixes_.of(prefix.back())) {
      const auto index = static_cast<std::size_t>(holder);
      if (!loads_.is_above(index, most, now) && replicas_[index]->has_cached(prefix)) return index;
    }
  }
  return least.index;
}

std::span<const RouterPolicy> router_policies() { return kPolicies; }

std::span<const std::string_view> router_names() {
  static const auto names = [] {
    std::array<std::string_view, kPolicies.size()> found;
    std::ranges::transform(kPolicies, found.begin(), &RouterPolicy::name);
    return found;
  }();
  return names;
}

const RouterPolicy& router_policy(RouterKind kind) {
  return *std::ranges::find(kPolicies, kind, &RouterPolicy::kind);
}

std::string_view to_text(RouterKind kind) { return router_policy(kind).name; }

RouterKind parse_router(std::string_view text) {
  const auto found = std::ranges::find(kPolicies, text, &RouterPolicy::name);
  if (found != kPolicies.end()) return found->kind;
  throw std::invalid_argument("unknown router \"" + shown(text) + "\", did you mean " +
                              nearest(text, router_names()) + "?");
}

}  // namespace orrery
