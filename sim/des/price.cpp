#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <variant>

#include "sim/des/levels.h"

namespace orrery {
namespace des {

std::string quoted(const Op& op) { return "op '" + printed_name(op) + "'"; }

PricedPlan assemble(const Plan& plan, std::vector<Estimate> times) {
  if (times.size() != plan.ops().size()) {
    throw std::invalid_argument("plan has " + std::to_string(plan.ops().size()) +
                                " ops and there are " + std::to_string(times.size()) + " times");
  }
  for (std::size_t i = 0; i < times.size(); ++i) {
    const double time = times[i].time.value();
    if (!(time >= 0) || !std::isfinite(time)) {
      throw std::invalid_argument(quoted(plan.ops()[i]) + " takes " + std::to_string(time) +
                                  " s; expected 0 or more, finite");
    }
  }
  PricedPlan priced{.plan = &plan, .times = std::move(times)};
  priced.chains = make_chains(plan, priced.times, {}, priced.why_not_chain);
  priced.is_chain = priced.why_not_chain.empty();
  if (plan.ops().empty()) return priced;
  const int first_rank = plan.ranks(plan.ops().front().ranks).front();
  for (std::size_t i = 0; i < priced.times.size(); ++i) {
    priced.energy +=
        priced.times[i].energy * (static_cast<double>(plan.multiplicity(static_cast<OpId>(i))) *
                                  static_cast<double>(plan.ranks(plan.ops()[i].ranks).size()));
    if (!std::ranges::binary_search(plan.ranks(plan.ops()[i].ranks), first_rank)) continue;
    const Estimate& estimate = priced.times[i];
    const auto copies = static_cast<double>(plan.multiplicity(static_cast<OpId>(i)));
    of_basis(priced.basis, estimate.basis) += estimate.time * copies;
    priced.arithmetic += estimate.arithmetic * copies;
  }
  return priced;
}

}  // namespace des

namespace {

// Ops with equal keys cost the same: a kernel wherever it runs, a collective among the same ranks.
using PriceKey = std::tuple<std::size_t, std::string, int, double, GroupId,
                            std::vector<std::int64_t>, std::vector<std::string>>;

PriceKey price_key(const Op& op) {
  PriceKey key{op.body.index(), {}, 0, 0.0, -1, {}, {}};
  if (const auto* kernel = std::get_if<KernelOp>(&op.body)) {
    std::get<1>(key) = kernel->kernel;
    std::get<2>(key) = static_cast<int>(kernel->dtype);
    std::get<3>(key) = kernel->free_sms;
    for (const Dim& dim : kernel->dims) {
      std::get<5>(key).push_back(dim.size);
      std::get<6>(key).push_back(dim.name);
    }
  } else if (const auto* comm = std::get_if<CommOp>(&op.body)) {
    std::get<2>(key) = static_cast<int>(comm->kind) * 256 + static_cast<int>(comm->dtype);
    std::get<3>(key) = comm->bytes_per_rank.value();
    if (comm->is_copied) std::get<1>(key) = "copied";
    std::get<4>(key) = op.ranks;
  } else {
    std::get<2>(key) = static_cast<int>(std::get<HostOp>(op.body).kind);
  }
  return key;
}

}  // namespace

PricedPlan price(const Plan& plan, const CostModel& cost, Clock clock) {
  if (plan.num_ranks() > cost.machine().num_gpus()) {
    throw std::invalid_argument("plan has " + std::to_string(plan.num_ranks()) +
                                " ranks; machine '" + cost.machine().spec.name + "' has " +
                                std::to_string(cost.machine().num_gpus()) + " GPUs");
  }
  std::map<PriceKey, Estimate> known;
  std::vector<Estimate> times;
  times.reserve(plan.ops().size());
  for (const Op& op : plan.ops()) {
    PriceKey key = price_key(op);
    if (cost.machine().joined) std::get<4>(key) = op.ranks;  // GPUs of two kinds
    const auto [entry, is_new] = known.try_emplace(std::move(key));
    if (is_new) entry->second = cost.price(plan, op);
    times.push_back(entry->second);
    times.back().time = entry->second.at(clock);
  }
  return des::assemble(plan, std::move(times));
}

PricedPlan limited(const PricedPlan& full, double part) {
  std::vector<Estimate> times = full.times;
  for (Estimate& estimate : times) {
    estimate.time += (estimate.limited - estimate.time) * part;
  }
  return des::assemble(*full.plan, std::move(times));
}

}  // namespace orrery
