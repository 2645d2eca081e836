#include "sim/serve/router.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

#include "sim/units/nearest.h"

namespace orrery {
namespace {

using Replicas = std::vector<std::unique_ptr<Replica>>;

// Above this much more work than the least loaded replica, in tokens and as a ratio, a cached
// prefix no longer decides. Assumption: of the size that cache-aware routers of engines use.
constexpr std::int64_t kImbalanceTokens = 16384;
constexpr double kImbalanceRatio = 1.5;

std::size_t round_robin(const Replicas& replicas, const Request&, std::int64_t arrival, Seconds) {
  return static_cast<std::size_t>(arrival) % replicas.size();
}

std::size_t least_loaded(const Replicas& replicas, const Request&, std::int64_t, Seconds now) {
  std::size_t best = 0;
  std::int64_t least = replicas[0]->outstanding_tokens(now);
  for (std::size_t i = 1; i < replicas.size(); ++i) {
    const std::int64_t load = replicas[i]->outstanding_tokens(now);
    if (load < least) {
      least = load;
      best = i;
    }
  }
  return best;
}

// The replica with the longest cached prefix, the less loaded of equals, unless it has much more
// work than the least loaded.
std::size_t prefix_aware(const Replicas& replicas, const Request& request, std::int64_t arrival,
                         Seconds now) {
  const std::size_t idle = least_loaded(replicas, request, arrival, now);
  const std::int64_t least = replicas[idle]->outstanding_tokens(now);
  std::size_t best = idle;
  std::int64_t longest = replicas[idle]->num_cached_units(request);
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    const std::int64_t units = replicas[i]->num_cached_units(request);
    const std::int64_t load = replicas[i]->outstanding_tokens(now);
    const bool is_overloaded =
        load > least + kImbalanceTokens &&
        static_cast<double>(load) > kImbalanceRatio * static_cast<double>(least);
    if (units > longest && !is_overloaded) {
      longest = units;
      best = i;
    }
  }
  return best;
}

constexpr std::array<RouterPolicy, 3> kPolicies = {{
    {RouterKind::kRoundRobin, "round_robin", "replicas in turn", true, round_robin},
    {RouterKind::kLeastLoaded, "least_loaded", "fewest tokens left to compute", false,
     least_loaded},
    {RouterKind::kPrefixAware, "prefix_aware", "longest cached prefix unless overloaded", false,
     prefix_aware},
}};

}  // namespace

std::span<const RouterPolicy> router_policies() { return kPolicies; }

const RouterPolicy& router_policy(RouterKind kind) {
  return *std::ranges::find(kPolicies, kind, &RouterPolicy::kind);
}

std::string_view to_text(RouterKind kind) { return router_policy(kind).name; }

RouterKind parse_router(std::string_view text) {
  std::vector<std::string_view> names;
  for (const RouterPolicy& policy : kPolicies) {
    if (policy.name == text) return policy.kind;
    names.push_back(policy.name);
  }
  throw std::invalid_argument("unknown router \"" + std::string(text) + "\", did you mean " +
                              nearest(text, names) + "?");
}

}  // namespace orrery
