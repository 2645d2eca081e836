#include "sim/serve/router.h"

#include <algorithm>
#include <array>
#include <numeric>
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

// Of SGLang's cache_aware (Model Gateway, --balance-abs-threshold, --balance-rel-threshold and
// --cache-threshold), their defaults.
constexpr std::int64_t kImbalanceRequests = 64;
constexpr double kRequestsRatio = 1.5;
constexpr double kCacheThreshold = 0.3;

// Of llm-d's scorers prefix-cache, queue and kv-cache-utilization, the weights of its default
// EndpointPickerConfig.
constexpr double kPrefixWeight = 3;
constexpr double kQueueWeight = 2;
constexpr double kKvWeight = 2;

constexpr std::array<RouterPolicy, 6> kPolicies = {{
    {.kind = RouterKind::kRoundRobin,
     .name = "round_robin",
     .summary = "replicas in turn",
     .is_load_blind = true,
     .finds_prefixes = false,
     .needs_sessions = false},
    {.kind = RouterKind::kLeastLoaded,
     .name = "least_loaded",
     .summary = "fewest tokens left to compute",
     .is_load_blind = false,
     .finds_prefixes = false,
     .needs_sessions = false},
    {.kind = RouterKind::kPrefixAware,
     .name = "prefix_aware",
     .summary = "longest cached prefix unless overloaded",
     .is_load_blind = false,
     .finds_prefixes = true,
     .needs_sessions = false},
    {.kind = RouterKind::kSessionAffinity,
     .name = "session_affinity",
     .summary = "all turns of a session to one, by consistent hashing",
     .is_load_blind = false,
     .finds_prefixes = false,
     .needs_sessions = true},
    {.kind = RouterKind::kCacheAware,
     .name = "cache_aware",
     .summary = "longest cached prefix above 30 % of the prompt, else fewest requests (SGLang)",
     .is_load_blind = false,
     .finds_prefixes = true,
     .needs_sessions = false},
    {.kind = RouterKind::kWeightedScores,
     .name = "weighted_scores",
     .summary = "cached share x 3 + short queue x 2 + free KV cache x 2 (llm-d)",
     .is_load_blind = false,
     .finds_prefixes = true,
     .needs_sessions = false},
}};

std::int64_t num_requests(const Replica& replica) {
  return replica.num_queued() + replica.num_running();
}

// The finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014): every bit depends on all.
std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

}  // namespace

Router::Router(RouterKind kind, std::span<const std::unique_ptr<Replica>> replicas,
               std::span<const Turn> turns)
    : kind_(kind), replicas_(replicas), turns_(turns), open_(replicas.size()), loads_(replicas) {
  std::iota(open_.begin(), open_.end(), 0);
  if (!router_policy(kind_).finds_prefixes) return;
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    replicas_[i]->tell_prefixes(prefixes_, static_cast<std::int32_t>(i));
  }
}

std::size_t Router::choose(const Request& request, std::int64_t arrival, Seconds now) {
  switch (kind_) {
    case RouterKind::kRoundRobin:
      return open_[static_cast<std::size_t>(arrival) % open_.size()];
    case RouterKind::kLeastLoaded:
      return loads_.least(now).index;
    case RouterKind::kSessionAffinity:
      return session_affinity(request);
    case RouterKind::kCacheAware:
      return cache_aware(request);
    case RouterKind::kWeightedScores:
      return weighted_scores(request, now);
    case RouterKind::kPrefixAware:
      break;
  }
  return prefix_aware(request, now);
}

bool Router::is_open(std::size_t index) const { return std::ranges::binary_search(open_, index); }

void Router::open(std::size_t index) {
  const auto at = std::ranges::lower_bound(open_, index);
  if (at != open_.end() && *at == index) return;
  open_.insert(at, index);
  loads_.set_open(index, true);
}

void Router::close(std::size_t index) {
  std::erase(open_, index);
  loads_.set_open(index, false);
}

void Router::replaced(std::size_t index) {
  if (!router_policy(kind_).finds_prefixes) return;
  prefixes_.forget(static_cast<std::int32_t>(index));
  replicas_[index]->tell_prefixes(prefixes_, static_cast<std::int32_t>(index));
}

// The highest of a random weight for each pair of session and replica (rendezvous hashing: Thaler,
// Ravishankar, IEEE/ACM Trans. Networking 6(1), 1998): where a replica goes only its sessions move,
// where one comes they move to it alone.
std::size_t Router::session_affinity(const Request& request) const {
  const auto session =
      static_cast<std::uint64_t>(turns_[static_cast<std::size_t>(request.id)].session);
  return *std::ranges::max_element(open_, {}, [&](std::size_t index) {
    return mixed(mixed(session + 1) ^ mixed(0x9e3779b97f4a7c15U * (index + 1)));
  });
}

std::vector<double> Router::cached_shares(const Request& request) const {
  std::vector<std::size_t> units(replicas_.size());
  const std::int64_t unit = replicas_.front()->tokens_per_unit();
  const std::size_t of_prompt =
      unit == 0 ? 0
                : std::min(request.block_hashes.size(),
                           static_cast<std::size_t>(request.prompt_tokens / unit));
  bool goes_on = true;
  for (std::size_t i = 0; i < of_prompt && goes_on; ++i) {
    goes_on = false;
    for (const std::int32_t holder : prefixes_.of(request.block_hashes[i])) {
      std::size_t& held = units[static_cast<std::size_t>(holder)];
      if (held < i) continue;
      held = i + 1;
      goes_on = true;
    }
  }
  std::vector<double> shares;
  shares.reserve(open_.size());
  for (const std::size_t index : open_) {
    shares.push_back(static_cast<double>(units[index]) * static_cast<double>(unit) /
                     static_cast<double>(request.prompt_tokens));
  }
  return shares;
}

// The longest cached prefix, where that is worth it and requests are spread evenly, else the fewest
// requests; of equals the one with fewer requests, then the first.
std::size_t Router::cache_aware(const Request& request) const {
  std::vector<std::int64_t> loads;
  loads.reserve(open_.size());
  for (const std::size_t index : open_) loads.push_back(num_requests(*replicas_[index]));
  const auto [least, most] = std::ranges::minmax_element(loads);
  const std::size_t idlest = open_[static_cast<std::size_t>(least - loads.begin())];
  if (*most - *least > kImbalanceRequests &&
      static_cast<double>(*most) > kRequestsRatio * static_cast<double>(*least)) {
    return idlest;
  }
  const std::vector<double> shares = cached_shares(request);
  std::size_t best = 0;
  for (std::size_t i = 1; i < open_.size(); ++i) {
    if (shares[i] > shares[best] || (shares[i] == shares[best] && loads[i] < loads[best])) best = i;
  }
  return shares[best] > kCacheThreshold ? open_[best] : idlest;
}

// The highest sum of scores, each in [0, 1]; of equals the one with fewer requests, then the first.
std::size_t Router::weighted_scores(const Request& request, Seconds now) const {
  const std::vector<double> shares = cached_shares(request);
  std::vector<std::int64_t> queued;
  queued.reserve(open_.size());
  for (const std::size_t index : open_) queued.push_back(replicas_[index]->num_queued());
  const auto [least, most] = std::ranges::minmax(queued);
  std::size_t best = open_.front();
  double highest = -1;
  for (std::size_t i = 0; i < open_.size(); ++i) {
    const Replica& replica = *replicas_[open_[i]];
    const double of_queue =
        most == least ? 1
                      : static_cast<double>(most - queued[i]) / static_cast<double>(most - least);
    const double score = kPrefixWeight * shares[i] + kQueueWeight * of_queue +
                         kKvWeight * (1 - replica.kv_utilisation(now));
    const bool is_idler =
        score == highest && num_requests(replica) < num_requests(*replicas_[best]);
    if (score > highest || is_idler) {
      highest = score;
      best = open_[i];
    }
  }
  return best;
}

void Router::changed(std::size_t index) {
  if (kind_ == RouterKind::kLeastLoaded || kind_ == RouterKind::kPrefixAware) {
    loads_.changed(index);
  }
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
      if (is_open(index) && !loads_.is_above(index, most, now) &&
          replicas_[index]->has_cached(prefix)) {
        return index;
      }
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

RouterKind decode_router(RouterKind kind) {
  const RouterPolicy& policy = router_policy(kind);
  return policy.finds_prefixes || policy.needs_sessions ? RouterKind::kLeastLoaded : kind;
}

RouterKind parse_router(std::string_view text) {
  const auto found = std::ranges::find(kPolicies, text, &RouterPolicy::name);
  if (found != kPolicies.end()) return found->kind;
  throw std::invalid_argument("unknown router \"" + shown(text) + "\", did you mean " +
                              nearest(text, router_names()) + "?");
}

}  // namespace orrery
