#pragma once

// Which replica an arriving request goes to.

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "sim/serve/replica.h"
#include "sim/serve/serve.h"

namespace orrery {

struct RouterPolicy {
  RouterKind kind;
  std::string_view name;
  std::string_view summary;
  bool is_load_blind;  // the choice depends on the order of arrivals only
  // Index of the replica for the `arrival`-th request (0-based) at `now`.
  std::size_t (*choose)(const std::vector<std::unique_ptr<Replica>>& replicas,
                        const Request& request, std::int64_t arrival, Seconds now);
};
std::span<const RouterPolicy> router_policies();
const RouterPolicy& router_policy(RouterKind kind);
std::string_view to_text(RouterKind kind);
RouterKind parse_router(std::string_view text);  // throws std::invalid_argument

}  // namespace orrery
