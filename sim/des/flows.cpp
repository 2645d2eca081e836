#include "sim/des/flows.h"

#include <algorithm>
#include <limits>
#include <map>

namespace orrery::des {
namespace {

void add_flow(FlowSet& set, const Machine& machine, int from, int to) {
  set.flows.push_back({.from = from, .to = to, .links = machine.route(from, to).links});
}

// Max-min fair rates by progressive filling: saturate the link with the least share per flow, fix
// its flows, repeat. Source: Bertsekas, Gallager, Data Networks, 2nd ed., section 6.5.2.
void share_links(FlowSet& set, const Machine& machine) {
  std::map<int, std::vector<std::size_t>> flows_on;
  for (std::size_t i = 0; i < set.flows.size(); ++i) {
    for (const int link : set.flows[i].links) flows_on[link].push_back(i);
  }
  struct Load {
    double rate_left;
    int num_open;
  };
  std::map<int, Load> loads;
  for (const auto& [link, flows] : flows_on) {
    set.num_flows_on.emplace_back(link, static_cast<int>(flows.size()));
    loads[link] = {machine.links[static_cast<std::size_t>(link)].rate.value(),
                   static_cast<int>(flows.size())};
  }
  std::vector<char> is_fixed(set.flows.size(), 0);
  for (;;) {
    double share = std::numeric_limits<double>::infinity();
    for (const auto& [link, load] : loads) {
      if (load.num_open > 0) share = std::min(share, load.rate_left / load.num_open);
    }
    if (share == std::numeric_limits<double>::infinity()) return;
    // All links that this share saturates, so that equal links take one round, not one each.
    std::vector<int> saturated;
    for (const auto& [link, load] : loads) {
      if (load.num_open > 0 && load.rate_left / load.num_open <= share * (1 + 1e-12)) {
        saturated.push_back(link);
      }
    }
    for (const int link : saturated) {
      for (const std::size_t flow : flows_on[link]) {
        if (is_fixed[flow]) continue;
        is_fixed[flow] = 1;
        set.flows[flow].rate = BytesPerSecond(share);
        for (const int crossed : set.flows[flow].links) {
          loads[crossed].rate_left -= share;
          --loads[crossed].num_open;
        }
      }
    }
  }
}

}  // namespace

FlowSet flows_of(const Machine& machine, CollectiveKind kind, std::span<const int> ranks,
                 std::span<const int> simulated) {
  FlowSet set;
  set.num_ranks = static_cast<int>(ranks.size());
  const auto is_simulated = [&](int rank) { return std::ranges::binary_search(simulated, rank); };
  std::vector<std::vector<int>> domains;
  int last_domain = -1;
  for (const int rank : ranks) {
    const int domain = machine.nvlink_domain_of(rank);
    if (domains.empty() || domain != last_domain) domains.emplace_back();
    last_domain = domain;
    domains.back().push_back(rank);
  }
  set.num_domains = static_cast<int>(domains.size());
  for (const auto& domain : domains) {
    set.num_local = std::max(set.num_local, static_cast<int>(domain.size()));
  }

  if (kind == CollectiveKind::kSendRecv) {
    if (is_simulated(ranks[0]) || is_simulated(ranks[1])) {
      add_flow(set, machine, ranks[0], ranks[1]);
    }
  } else if (domains.size() == 1) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const bool is_last = i + 1 == ranks.size();
      if (!is_simulated(ranks[i]) || (is_last && kind == CollectiveKind::kBroadcast)) continue;
      add_flow(set, machine, ranks[i], ranks[is_last ? 0 : i + 1]);
    }
  } else {
    for (std::size_t d = 0; d < domains.size(); ++d) {
      const bool is_last = d + 1 == domains.size();
      if (is_last && kind == CollectiveKind::kBroadcast) continue;
      const std::vector<int>& next = domains[is_last ? 0 : d + 1];
      for (std::size_t j = 0; j < domains[d].size(); ++j) {
        if (!is_simulated(domains[d][j])) continue;
        add_flow(set, machine, domains[d][j], next[j % next.size()]);
      }
    }
  }
  share_links(set, machine);
  return set;
}

FlowSet flows_between(const Machine& machine, const Sides& sides, std::span<const int> simulated) {
  FlowSet set;
  const std::size_t num_senders = sides.senders.size();
  const std::size_t num_receivers = sides.receivers.size();
  const auto [fewer, more] = std::minmax(num_senders, num_receivers);
  set.num_ranks = static_cast<int>(num_senders + num_receivers);
  set.side_share = static_cast<double>(fewer) / static_cast<double>(more);
  const auto is_simulated = [&](int rank) { return std::ranges::binary_search(simulated, rank); };
  for (std::size_t i = 0; i < more; ++i) {
    const int from = sides.senders[i % num_senders];
    const int to = sides.receivers[i % num_receivers];
    if (is_simulated(from) || is_simulated(to)) add_flow(set, machine, from, to);
  }
  share_links(set, machine);
  return set;
}

Bytes bytes_per_flow(const FlowSet& flows, const CommOp& op) {
  if (flows.side_share > 0) return op.bytes_per_rank * flows.side_share;
  const double n = flows.num_ranks;
  const double m = flows.num_domains;
  const double local = flows.num_local;
  const bool is_local = flows.num_domains == 1;
  switch (op.kind) {
    case CollectiveKind::kAllReduce:  // reduce-scatter and all-gather
      return op.bytes_per_rank * (is_local ? 2 * (n - 1) / n : 2 * (m - 1) / m / local);
    case CollectiveKind::kAllGather:
      return op.bytes_per_rank * (is_local ? n - 1 : (n - local) / local);
    case CollectiveKind::kReduceScatter:
      return op.bytes_per_rank * (is_local ? (n - 1) / n : (n - local) / n / local);
    case CollectiveKind::kAllToAll:  // the share that leaves the rank, or its domain
      return op.bytes_per_rank * (is_local ? (n - 1) / n : (n - local) / n);
    case CollectiveKind::kSendRecv:
      return op.bytes_per_rank;
    case CollectiveKind::kBroadcast:
      return is_local ? op.bytes_per_rank : op.bytes_per_rank / local;
  }
  return op.bytes_per_rank;
}

Seconds time_alone(const FlowSet& flows, Bytes bytes_each) {
  Seconds longest;
  for (const Flow& flow : flows.flows) longest = std::max(longest, bytes_each / flow.rate);
  return longest;
}

}  // namespace orrery::des
