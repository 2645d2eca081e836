#include "sim/serve/step_corrections.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "sim/serve/fast_forward.h"
#include "sim/serve/simulated_steps.h"

namespace orrery {
namespace {

std::int64_t rank_decodes(const SimulatedStepsConfig& config, std::int64_t num_decodes) {
  return (num_decodes + config.mesh.dp - 1) / config.mesh.dp;
}

void uneven_attention(const SimulatedStepsConfig& config, std::int64_t num_decodes,
                      DeviceTime& time) {
  if (num_decodes < 2) return;
  const std::int64_t kv_heads =
      std::max<std::int64_t>(config.model.num_key_value_heads / config.mesh.tp, 1);
  const bool are_few =
      rank_decodes(config, num_decodes) * kv_heads * 2 <= config.machine->device().num_sms;
  const UnevenAttention& uneven = config.uneven_attention;
  const auto layers =
      std::ranges::count(config.model.layers, AttentionKind::kGqa, &LayerConfig::attention);
  const Seconds more = (are_few ? uneven.of_few : uneven.more) * static_cast<double>(layers);
  time.basis.interpolated += more;
  time.duration += more;
  time.limited += more;
}

// Each stage of a pipeline has its part of the step, and pauses for the others; the arithmetic is
// that of the first stage alone.
void power_budget(const StepContext& step, StepPrice& price) {
  if (step.budget == nullptr) return;
  const auto stages = static_cast<double>(step.config.mesh.pp);
  const Seconds full = price.first / stages;
  const double part = step.budget->step(full, price.arithmetic);
  step.budget->rest(full * (stages - 1));
  if (!(part > 0)) return;
  const Seconds slower = price.first + (price.limited - price.first) * part;
  price.basis = scaled(price.basis, slower / price.first);
  price.first = slower;
}

// What a throttled clock adds to decodes wanes evenly, step by step, until the clock is full again.
void decode_clock(const StepContext& step, StepPrice& price) {
  if (step.budget == nullptr) return;
  const double throttling = step.budget->throttling();
  if (throttling <= 0) return;
  const PowerLimit& limit = step.config.eager_cost->options().power;
  const double longer = (limit.decodes - 1) * throttling;
  const double share = std::min(price.first / step.budget->full_after(step.arithmetic_share), 1.0);
  price.throttling = longer;
  price.throttling_slope = -longer * share;
  // A slope below zero has no place beside a host that may be the slower one.
  const std::int64_t most = step.config.async_scheduling
                                ? 1
                                : static_cast<std::int64_t>(std::ceil(std::min(1 / share, 1e9)));
  price.num_steps = std::min(price.num_steps, most);
  price.slope += price.first * price.throttling_slope;
  price.first = price.first * (1 + longer);
}

// Each data-parallel rank has a host process of its own.
void host_base(const StepContext& step, StepPrice& price) {
  const SimulatedStepsConfig& config = step.config;
  price.host += config.scheduler_base +
                config.scheduler_per_sequence * static_cast<double>(step.rank_sequences);
}

void prefill_base(const StepContext& step, StepPrice& price) {
  price.host += step.config.prefill_base;
}

void new_rows(const StepContext& step, StepPrice& price) {
  if (!step.known.rows) price.host += step.config.new_rows;
}

void new_attention(const StepContext& step, StepPrice& price) {
  if (!step.known.attention) price.host += step.config.new_attention;
}

void beside_host(const StepContext& step, StepPrice& price) {
  if (!step.config.async_scheduling) {
    price.first += price.host;
    return;
  }
  if (price.first >= price.host) return;
  // The host is the slower one until the device time, which grows, reaches it.
  const double steps = price.slope > Seconds(0) ? (price.host - price.first) / price.slope : 1e18;
  const auto bound = static_cast<std::int64_t>(std::min(std::ceil(steps), 1e18));
  price.num_steps = std::clamp(bound, std::int64_t{1}, price.num_steps);
  price.first = price.host;
  price.slope = Seconds(0);
}

constexpr std::array kCorrections = {
    StepCorrection{.name = "decodes of different contexts",
                   .source = "rows of powers of two (topologies, attention_decode.csv)",
                   .of_attention = between_powers_of_two},
    StepCorrection{.name = "uneven attention",
                   .source = "engine profile, kernel_time: uneven_attention",
                   .of_device = uneven_attention},
    StepCorrection{.name = "power budget",
                   .source = "power_limit.csv of the device; engine profile, power_limit",
                   .of_prefill = power_budget},
    StepCorrection{.name = "clock after prompts",
                   .source = "engine profile, power_limit: decodes",
                   .of_decodes = decode_clock},
    StepCorrection{.name = "host",
                   .source = "engine profile, scheduler_base and serve_base, and per sequence",
                   .of_prefill = host_base,
                   .of_decodes = host_base},
    StepCorrection{.name = "host of prefill",
                   .source = "engine profile, prefill_base",
                   .of_prefill = prefill_base},
    StepCorrection{.name = "rows that are new to the host",
                   .source = "engine profile, new_rows",
                   .of_prefill = new_rows},
    StepCorrection{.name = "attention of a new shape",
                   .source = "engine profile, new_attention",
                   .of_prefill = new_attention,
                   .of_decodes = new_attention},
    StepCorrection{.name = "host and device",
                   .source = "engine, async_scheduling: the longer of both, or one after the other",
                   .of_prefill = beside_host,
                   .of_decodes = beside_host}};

void correct_price(void (*StepCorrection::*act)(const StepContext&, StepPrice&),
                   const StepContext& step, StepPrice& price,
                   std::vector<AppliedStepCorrection>* applied) {
  for (const StepCorrection& correction : kCorrections) {
    if (correction.*act == nullptr) continue;
    const StepPrice before = price;
    (correction.*act)(step, price);
    if (applied == nullptr) continue;
    if (price.first != before.first) {
      applied->push_back({correction.name, correction.source, before.first, price.first});
    } else if (price.host != before.host) {
      applied->push_back({correction.name, correction.source, before.host, price.host});
    }
  }
}

}  // namespace

std::span<const StepCorrection> step_corrections() { return kCorrections; }

void correct_device(const SimulatedStepsConfig& config, std::int64_t num_decodes, DeviceTime& time,
                    std::vector<AppliedStepCorrection>* applied) {
  for (const StepCorrection& correction : kCorrections) {
    if (correction.of_device == nullptr) continue;
    const Seconds before = time.duration;
    correction.of_device(config, num_decodes, time);
    if (applied != nullptr && time.duration != before) {
      applied->push_back({correction.name, correction.source, before, time.duration});
    }
  }
}

void correct_prefill(const StepContext& step, StepPrice& price,
                     std::vector<AppliedStepCorrection>* applied) {
  correct_price(&StepCorrection::of_prefill, step, price, applied);
}

void correct_decodes(const StepContext& step, StepPrice& price,
                     std::vector<AppliedStepCorrection>* applied) {
  correct_price(&StepCorrection::of_decodes, step, price, applied);
}

Estimate between_powers_of_two(const CostModel& cost, KernelOp op) {
  Dim& batch = *std::ranges::find(op.dims, "batch", &Dim::name);
  const std::int64_t size = batch.size;
  batch.size = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(size)));
  const std::int64_t low = batch.size;
  Estimate estimate = cost.kernel(op);
  if (low == size) return estimate;
  batch.size = 2 * low;
  const Estimate high = cost.kernel(op);
  const double share = static_cast<double>(size - low) / static_cast<double>(low);
  for (Seconds Estimate::* time : {&Estimate::time, &Estimate::limited, &Estimate::arithmetic}) {
    estimate.*time = (estimate.*time) * (1 - share) + (high.*time) * share;
  }
  estimate.energy = estimate.energy * (1 - share) + high.energy * share;
  estimate.basis = std::max({estimate.basis, high.basis, Basis::kInterpolated});
  return estimate;
}

}  // namespace orrery
