#include "sim/des/gpu_shares.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <variant>

#include "kernels/kernel_spec.h"
#include "sim/cost/roofline.h"

namespace orrery::des {
namespace {

constexpr double kRounding = 1e-12;  // of sums of shares
constexpr double kSaturating = 0.7;  // of the memory's rate

// Of a kernel whose blocks are known, a part of which run. One that shares the memory with fewer
// goes faster where the memory is what it waits for: of a kernel that draws all of its rate as fast
// as one on so few SMs that these draw all, of one that draws clearly less not at all.
double speed_of_blocks(const SharingRates& rates, const GpuDemand& demand, double part) {
  const double saturated = std::clamp((demand.hbm - kSaturating) / (1 - kSaturating), 0.0, 1.0);
  return std::min(part * (1 + saturated * (1 / rates.sms_for_hbm - 1)), 1.0);
}

// Speed of an activity on `granted` of the SMs when it gets all the memory rate it asks for. The
// larger of its demands is taken to be what bounds it alone.
double speed_on(const SharingRates& rates, const GpuDemand& demand, double granted) {
  if (granted + kRounding >= demand.sms) return 1;
  const double part = granted / demand.sms;
  const double bound = std::max(demand.math, demand.hbm);
  if (bound <= 0) return part;
  double speed = 1;
  if (demand.rounds > 0 && demand.hbm > demand.math) speed = speed_of_blocks(rates, demand, part);
  if (demand.math > 0) speed = std::min(speed, part * bound / demand.math);
  if (demand.hbm > 0) speed = std::min(speed, granted / rates.sms_for_hbm / demand.hbm);
  return speed;
}

// Lowers speeds until what is asked of the memory fits into it: in proportion to the SMs granted,
// since each has about as many bytes under way, but to none more than it asks for.
void share_memory(std::span<const GpuDemand> demands, std::span<const double> granted,
                  std::vector<GpuShare>& shares) {
  const auto asked = [&](std::size_t i) { return demands[i].hbm * shares[i].speed; };
  std::vector<std::size_t> open;
  double left = 1;
  double weights = 0;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    if (asked(i) <= 0) continue;
    if (granted[i] <= 0) {  // a copy engine
      left = std::max(left - asked(i), 0.0);
      continue;
    }
    open.push_back(i);
    weights += granted[i];
  }
  std::ranges::stable_sort(open, {}, [&](std::size_t i) { return asked(i) / granted[i]; });
  for (const std::size_t i : open) {
    const double fair = left * granted[i] / weights;
    if (asked(i) > fair + kRounding) shares[i].speed = fair / demands[i].hbm;
    left -= asked(i);
    weights -= granted[i];
  }
}

// First come, first served, but collectives before kernels that yield.
std::vector<std::size_t> order_of_sms(std::span<const GpuDemand> demands) {
  std::vector<std::size_t> order;
  order.reserve(demands.size());
  for (std::size_t i = 0; i < demands.size(); ++i) {
    auto place = order.end();
    if (demands[i].is_collective) {
      while (place != order.begin() && demands[*std::prev(place)].yields) --place;
    }
    order.insert(place, i);
  }
  return order;
}

// The clock that all SMs have in common.
void share_power(const SharingRates& rates, std::span<const GpuDemand> demands,
                 std::vector<GpuShare>& shares) {
  double computed = 0;
  double allowed = rates.math_share;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    computed += demands[i].math * shares[i].speed;
    if (shares[i].speed > 0) allowed = std::max(allowed, demands[i].math);
  }
  if (computed <= allowed + kRounding) return;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    if (demands[i].math > demands[i].hbm) shares[i].speed *= allowed / computed;
  }
}

// What collectives on SMs move goes through the memory and the L2 cache of all kernels.
void slow_beside_collectives(const SharingRates& rates, std::span<const GpuDemand> demands,
                             std::vector<GpuShare>& shares) {
  double moved = 0;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const bool is_of_sms = demands[i].is_collective && demands[i].sms > 0;
    if (is_of_sms) moved += demands[i].hbm * shares[i].speed;
  }
  if (moved <= 0) return;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    if (!demands[i].is_collective) shares[i].speed /= 1 + rates.beside_collective * moved;
  }
}

// SMs that a kernel fills, as a share. Of a GEMM whose blocks are not known, one that is bound by
// memory and draws clearly less than all of its rate has too few to do so: few columns of few
// tokens. The blocks of one whose work is dealt are those of our own kernel (price.rounds).
double sms_of(const Device& device, const KernelSpec& spec, const KernelOp& op,
              const GpuDemand& demand) {
  const bool is_known =
      spec.prior.blocks != nullptr && (spec.rounds == nullptr || demand.rounds > 0);
  const double blocks = is_known ? spec.prior.blocks(op.dtype, op.dims) : 0;
  if (blocks == kNoBlocks) return 0;
  if (blocks > 0) return device.num_sms > 0 ? std::min(blocks / device.num_sms, 1.0) : 1.0;
  if (spec.prior.arithmetic != Arithmetic::kGemm || demand.math > demand.hbm) return 1;
  return std::min(demand.hbm / kSaturating, 1.0);
}

}  // namespace

SharingRates sharing_rates(const Device& device) {
  SharingRates rates = device.sharing;
  // H200: reads stream at 0.93 of the sheet's rate (topologies/devices/h200-sxm/probes.csv).
  if (rates.hbm_rate.value() == 0) rates.hbm_rate = device.hbm_bandwidth * 0.93;
  if (rates.sms_for_hbm == 0) rates.sms_for_hbm = 0.6;
  if (rates.math_share == 0) rates.math_share = 0.67;
  if (rates.waited_collective == 0) rates.waited_collective = 1.15;
  if (rates.loaded_collective == 0) rates.loaded_collective = 3.2;
  if (rates.beside_collective == 0) rates.beside_collective = 2.6;
  return rates;
}

GpuDemand kernel_demand(const Device& device, const KernelOp& op, const Estimate& price) {
  const Seconds time = price.time;
  GpuDemand demand;
  if (time.value() <= 0 || op.dims.empty()) return demand;
  const Work work = work_of(op);
  const Bytes bytes = work.bytes_read + work.bytes_written;
  demand.hbm = std::min(bytes / sharing_rates(device).hbm_rate / time, 1.0);
  const KernelSpec& spec = kernel_spec(op.kernel);
  const FlopsPerSecond peak = peak_flops(device, arithmetic_dtype(spec, op.dtype));
  demand.math = std::min(work.flops / peak / time, 1.0);
  demand.rounds = price.rounds;
  demand.sms = sms_of(device, spec, op, demand);
  demand.yields = spec.prior.arithmetic == Arithmetic::kRows;
  if (price.free_sms > 0 && device.num_sms > 0) {
    const double left = static_cast<double>(price.free_sms) / device.num_sms;
    demand.sms = std::min(demand.sms, std::max(1 - left, 0.0));
  }
  return demand;
}

std::vector<GpuDemand> kernel_demands(const Plan& plan, std::span<const Estimate> times,
                                      const Machine& machine) {
  std::vector<GpuDemand> demands(times.size());
  for (std::size_t i = 0; i < times.size(); ++i) {
    const auto* kernel = std::get_if<KernelOp>(&plan.ops()[i].body);
    if (kernel == nullptr) continue;
    const int rank = plan.ranks(plan.ops()[i].ranks).front();
    demands[i] = kernel_demand(machine.device_of(rank), *kernel, times[i]);
  }
  return demands;
}

GpuDemand collective_demand(const SharingRates& rates, double sms, Bytes bytes, Seconds time) {
  GpuDemand demand{.sms = sms, .math = 0, .is_collective = true};
  if (time.value() > 0) demand.hbm = std::min(bytes * 2 / rates.hbm_rate / time, 1.0);
  return demand;
}

std::vector<GpuShare> share_gpu(const SharingRates& rates, std::span<const GpuDemand> demands) {
  std::vector<GpuShare> shares(demands.size());
  std::vector<double> granted(demands.size());
  double free = 1;
  for (const std::size_t i : order_of_sms(demands)) {
    const GpuDemand& demand = demands[i];
    const double wanted = demand.sms * demand.wanted;
    granted[i] = std::min(wanted, free);
    free = std::max(free - granted[i], 0.0);
    shares[i] = {.speed = speed_on(rates, demand, granted[i]),
                 .sms = granted[i],
                 .has_all = granted[i] + kRounding >= wanted};
  }
  share_power(rates, demands, shares);
  share_memory(demands, granted, shares);
  slow_beside_collectives(rates, demands, shares);
  return shares;
}

}  // namespace orrery::des
