#include <algorithm>
#include <array>
#include <map>

#include "sim/cost/collectives.h"

namespace orrery {
namespace {

// SM-driven traffic reaches 370 GB/s of the 450 GB/s of Hopper's NVLink (NVIDIA/nccl-tests issue
// 212; measured send-recv on H200 370 GB/s). Used when there are no tables to fit.
constexpr double kNvlinkEfficiency = 370.0 / 450.0;
// 46 to 48 GB/s of a 400 Gbit/s NIC are expected (NVIDIA/nccl-tests issue 290).
constexpr double kNicEfficiency = 47.0 / 50.0;
// Software time of one call without tables, and of one step between nodes: with 13 us inside the
// node before and after, two steps of 10 us make the 46.5 us that a small all-reduce takes on two
// nodes (NVIDIA/nccl issue 1244). Small NCCL calls on 2 GPUs of an H200 node take 5 to 6 us.
constexpr Seconds kCallOverhead = Seconds(5e-6);
constexpr Seconds kNodeStepOverhead = Seconds(10e-6);
constexpr double kModelSpread = 0.3;

// Number of ranks in each NVLink domain that has any.
std::map<int, int> ranks_by_domain(const Machine& machine, std::span<const int> ranks) {
  std::map<int, int> counts;
  for (const int rank : ranks) {
    ++counts[machine.nvlink_domain_of(rank)];
  }
  return counts;
}

class Model {
 public:
  Model(const Machine& machine, const CollectiveCurves& curves, const CommOp& op,
        const CostOptions& options)
      : machine_(machine), curves_(curves), op_(op), options_(options) {}

  Seconds run(std::span<const int> ranks) {
    if (op_.kind == CollectiveKind::kSendRecv) {
      return send_recv(ranks[0], ranks[1]);
    }
    const std::map<int, int> domains = ranks_by_domain(machine_, ranks);
    const int num_ranks = static_cast<int>(ranks.size());
    if (domains.size() == 1) {
      return inside(op_.kind, op_.bytes_per_rank, num_ranks);
    }
    // The fullest domain decides.
    int local = 1;
    for (const auto& [domain, count] : domains) {
      local = std::max(local, count);
    }
    const int home = machine_.nvlink_domain_of(ranks[0]);
    const auto* const away = std::find_if(ranks.data(), ranks.data() + ranks.size(), [&](int rank) {
      return machine_.nvlink_domain_of(rank) != home;
    });
    latency_across_ = machine_.route(ranks[0], *away).latency + kNodeStepOverhead;
    return across(num_ranks, static_cast<int>(domains.size()), local);
  }

 private:
  BytesPerSecond nvlink() const { return machine_.spec.nvlink_rate * fitted_efficiency(); }
  BytesPerSecond nic() const { return machine_.spec.nic_rate * kNicEfficiency; }

  // Share of the NVLink rate that the largest measured all_to_all reaches: in it each rank sends
  // (n-1)/n of its buffer over its own link.
  double fitted_efficiency() const {
    double best = 0;
    for (const CollectiveSource& source : curves_.sources) {
      for (const auto& [key, curve] : source.tables->tables().curves) {
        if (key.kind == CollectiveKind::kAllToAll) {
          const double sent = curve.bytes.back() * (key.num_gpus - 1) / key.num_gpus;
          best = std::max(best, sent / curve.time_s.back() / source.nvlink_rate.value());
        }
      }
      if (best > 0) {
        return std::min(best, 1.0);
      }
    }
    return kNvlinkEfficiency;
  }

  // One collective inside a domain: measured if it can be, else by closed form.
  Seconds inside(CollectiveKind kind, Bytes bytes, int num_ranks) const {
    if (num_ranks == 1) {
      return Seconds(0);
    }
    const CommOp part{.kind = kind, .dtype = op_.dtype, .bytes_per_rank = bytes};
    if (const auto found = measured_collective(curves_, part, num_ranks, options_)) {
      return found->time;
    }
    const Seconds latency = machine_.spec.nvlink_latency;
    switch (kind) {
      case CollectiveKind::kAllReduce:
        return kCallOverhead +
               std::min(ring_all_reduce_time(bytes, num_ranks, nvlink(), latency),
                        one_shot_all_reduce_time(bytes, num_ranks, nvlink(), latency));
      case CollectiveKind::kAllGather:
        // Direct: every rank sends to all others at once, one latency.
        return kCallOverhead + latency + bytes * static_cast<double>(num_ranks - 1) / nvlink();
      case CollectiveKind::kReduceScatter:
      case CollectiveKind::kAllToAll:
        return kCallOverhead + direct_all_to_all_time(bytes, num_ranks, nvlink(), latency);
      case CollectiveKind::kBroadcast:
        return kCallOverhead + pipelined_broadcast_time(bytes, num_ranks, nvlink(), latency);
      case CollectiveKind::kSendRecv:
        return kCallOverhead + latency + bytes / nvlink();
    }
    return Seconds(0);
  }

  // `num_ranks` over `num_domains`, `local` in each.
  Seconds across(int num_ranks, int num_domains, int local) const {
    const Bytes bytes = op_.bytes_per_rank;
    switch (op_.kind) {
      case CollectiveKind::kAllReduce:
        return inside(CollectiveKind::kReduceScatter, bytes, local) +
               ring_all_reduce_time(bytes / local, num_domains, nic(), latency_across_) +
               inside(CollectiveKind::kAllGather, bytes / local, local);
      case CollectiveKind::kAllGather:
        // Each GPU gathers the contributions of its peers on the rail, then shares them inside.
        return ring_all_gather_time(bytes, num_domains, nic(), latency_across_) +
               inside(CollectiveKind::kAllGather, bytes * num_domains, local);
      case CollectiveKind::kReduceScatter:
        return inside(CollectiveKind::kReduceScatter, bytes, local) +
               ring_reduce_scatter_time(bytes / local, num_domains, nic(), latency_across_);
      case CollectiveKind::kAllToAll: {
        // NIC and NVLink carry their shares at the same time.
        const Bytes per_peer = bytes / num_ranks;
        const Seconds over_nic =
            latency_across_ + per_peer * static_cast<double>(num_ranks - local) / nic();
        const Seconds over_nvlink = inside(CollectiveKind::kAllToAll, per_peer * local, local);
        return std::max(over_nic, over_nvlink);
      }
      case CollectiveKind::kBroadcast:
        return pipelined_broadcast_time(bytes, num_domains, nic(), latency_across_) +
               inside(CollectiveKind::kBroadcast, bytes, local);
      case CollectiveKind::kSendRecv:
        break;
    }
    return Seconds(0);
  }

  Seconds send_recv(int from, int to) const {
    const std::array<int, 2> pair{from, to};
    const bool is_local = machine_.in_one_nvlink_domain(pair);
    const Seconds latency = machine_.route(from, to).latency;
    return (is_local ? kCallOverhead : kNodeStepOverhead) + latency +
           op_.bytes_per_rank / (is_local ? machine_.spec.nvlink_rate * kNvlinkEfficiency : nic());
  }

  const Machine& machine_;
  const CollectiveCurves& curves_;
  const CommOp& op_;
  const CostOptions& options_;
  Seconds latency_across_;
};

}  // namespace

Estimate modelled_collective(const Machine& machine, const CollectiveCurves& curves,
                             const CommOp& op, std::span<const int> ranks,
                             const CostOptions& options) {
  return {.time = Model(machine, curves, op, options).run(ranks),
          .basis = Basis::kRoofline,
          .spread = kModelSpread};
}

Estimate exchange_between(const JoinedMachines& machines, Bytes of_front, Bytes of_behind) {
  const double share = machines.is_rate_given ? 1 : kNicEfficiency;
  const Seconds moving = std::max(of_front / (machines.from_front.rate * share),
                                  of_behind / (machines.from_behind.rate * share));
  return {.time = machines.from_front.latency + kNodeStepOverhead + moving,
          .basis = Basis::kRoofline,
          .spread = kModelSpread};
}

}  // namespace orrery
