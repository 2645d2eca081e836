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
  Router(RouterKind kind, std::span<const std::unique_ptr<Replica>> replicas);
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  // Index of the replica for the `arrival`-th request (0-based) at `now`, not before an earlier
  // call.
  [[nodiscard]] std::size_t choose(const Request& request, std::int64_t arrival, Seconds now);
  // Something other than time changed what replica `index` has to do.
  void changed(std::size_t index);

 private:
  [[nodiscard]] std::size_t prefix_aware(const Request& request, Seconds now);

  RouterKind kind_;
  std::span<const std::unique_ptr<Replica>> replicas_;
  LoadIndex loads_;
  PrefixHolders prefixes_;
};

struct RouterPolicy {
  RouterKind kind;
  std::string_view name;
  std::string_view summary;
  bool is_load_blind;  // the choice depends on the order of arrivals only
};
std::span<const RouterPolicy> router_policies();
// Their names, in the same order.
std::span<const std::string_view> router_names();
const RouterPolicy& router_policy(RouterKind kind);
std::string_view to_text(RouterKind kind);
RouterKind parse_router(std::string_view text);  // throws std::invalid_argument

}  // namespace orrery
