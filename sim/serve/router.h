#pragma once

// Which replica an arriving request goes to.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "sim/serve/load_index.h"
#include "sim/serve/prefix_holders.h"
#include "sim/serve/replica.h"
#include "sim/serve/serve.h"

namespace orrery {

// Chooses among `replicas`, which outlive it, and knows of their loads and prefixes what it needs
// to choose without asking all of them.
class Router {
 public:
  // `turns`: of requests by id, where they are turns of sessions; they outlive it too.
  Router(RouterKind kind, std::span<const std::unique_ptr<Replica>> replicas,
         std::span<const Turn> turns = {});
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  // Index of the replica for the `arrival`-th request (0-based) at `now`, not before an earlier
  // call.
  [[nodiscard]] std::size_t choose(const Request& request, std::int64_t arrival, Seconds now);
  // Something other than time changed what replica `index` has to do.
  void changed(std::size_t index);
  // Replica `index` takes requests from now on, or none any more; all do at first, and one always
  // does.
  void open(std::size_t index);
  void close(std::size_t index);
  // Another replica, with empty caches, has the place of replica `index`, which is closed and holds
  // nothing that runs.
  void replaced(std::size_t index);

 private:
  [[nodiscard]] bool is_open(std::size_t index) const;
  [[nodiscard]] std::size_t prefix_aware(const Request& request, Seconds now);
  [[nodiscard]] std::size_t session_affinity(const Request& request) const;
  [[nodiscard]] std::size_t cache_aware(const Request& request) const;
  [[nodiscard]] std::size_t weighted_scores(const Request& request, Seconds now) const;
  // Of the prompt of `request`, the part in the caches of each open replica.
  [[nodiscard]] std::vector<double> cached_shares(const Request& request) const;

  RouterKind kind_;
  std::span<const std::unique_ptr<Replica>> replicas_;
  std::span<const Turn> turns_;
  std::vector<std::size_t> open_;  // ascending
  LoadIndex loads_;
  PrefixHolders prefixes_;
};

struct RouterPolicy {
  RouterKind kind;
  std::string_view name;
  std::string_view summary;
  bool is_load_blind;   // the choice depends on the order of arrivals only
  bool finds_prefixes;  // it needs a prefix cache
  bool needs_sessions;
};
std::span<const RouterPolicy> router_policies();
// Their names, in the same order.
std::span<const std::string_view> router_names();
const RouterPolicy& router_policy(RouterKind kind);
std::string_view to_text(RouterKind kind);
RouterKind parse_router(std::string_view text);  // throws std::invalid_argument
// `kind`, or what stands for it among replicas that only decode, which have no prefix cache.
RouterKind decode_router(RouterKind kind);

}  // namespace orrery
