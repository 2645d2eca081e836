#include "sim/serve/simulated_steps.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "sim/parallel/rank_rows.h"
#include "sim/serve/leap_time.h"

namespace orrery {
namespace {

constexpr double kStepsPerOctave = 8;      // grid of mean contexts
constexpr std::int64_t kFirstContext = 8;  // below, every context is a grid point
constexpr int kShapeBits = 6;              // significant bits of shapes whose whole plan is priced

std::int64_t grid_point(std::int64_t index) {
  if (index < kFirstContext) return index + 1;
  const double octaves = static_cast<double>(index - kFirstContext + 1) / kStepsPerOctave;
  return static_cast<std::int64_t>(
      std::llround(static_cast<double>(kFirstContext) * std::exp2(octaves)));
}

// Largest grid index whose point is at most `context` >= 1. Points rise by at least one: 8 *
// 2^(1/8) = 8.7 rounds to 9.
std::int64_t grid_index(double context) {
  auto index = static_cast<std::int64_t>(
      context < static_cast<double>(kFirstContext)
          ? context - 1
          : static_cast<double>(kFirstContext) - 1 +
                std::log2(context / static_cast<double>(kFirstContext)) * kStepsPerOctave);
  while (static_cast<double>(grid_point(index + 1)) <= context) ++index;
  while (index > 0 && static_cast<double>(grid_point(index)) > context) --index;
  return index;
}

// What attention alone depends on, within 0.8 %. Rows are kept, since times of GEMMs jump where a
// tile is full.
StepShape rounded(StepShape shape) {
  for (std::int64_t* value : {&shape.prefill_context, &shape.num_decodes, &shape.decode_context}) {
    *value = round_bits(*value, kShapeBits);
  }
  return shape;
}

template <typename Map, typename Key, typename Make>
DeviceTime remember(std::shared_mutex& mutex, Map& map, const Key& key, Make make) {
  {
    const std::shared_lock lock(mutex);
    const auto found = map.find(key);
    if (found != map.end()) return found->second;
  }
  const DeviceTime made = make();
  const std::unique_lock lock(mutex);
  return map.try_emplace(key, made).first->second;
}

StepSetup setup(const SimulatedStepsConfig& config, const CostModel* cost) {
  return {.model = config.model,
          .mesh = config.mesh,
          .lowering = config.lowering,
          .machine = config.machine,
          .cost = cost,
          .level = config.level,
          .has_uneven_decodes = config.uneven_attention.more > Seconds(0)};
}

}  // namespace

StepTimes::StepTimes(SimulatedStepsConfig config)
    : config_(std::move(config)),
      graph_(setup(config_, config_.graph_cost)),
      graph_templates_(graph_),
      eager_(setup(config_, config_.eager_cost)),
      graph_arithmetic_(setup(config_, config_.graph_arithmetic_cost == nullptr
                                           ? config_.graph_cost
                                           : config_.graph_arithmetic_cost)),
      graph_arithmetic_templates_(graph_arithmetic_) {
  if (config_.limited_cost != nullptr && config_.arithmetic_cost != nullptr) {
    limited_ = std::make_unique<Eager>(setup(config_, config_.limited_cost));
    arithmetic_ = std::make_unique<Eager>(setup(config_, config_.arithmetic_cost));
  }
  if (!std::ranges::is_sorted(config_.graph_batch_sizes) ||
      (!config_.graph_batch_sizes.empty() && config_.graph_batch_sizes.front() < 1)) {
    throw std::invalid_argument("graph_batch_sizes must ascend and be at least 1");
  }
}

std::int64_t StepTimes::rank_decodes(std::int64_t num_decodes) const {
  return (num_decodes + config_.mesh.dp - 1) / config_.mesh.dp;
}

bool StepTimes::is_graph(const Batch& batch) const {
  return graph_rows(batch, config_.mesh.dp, config_.graph_batch_sizes).has_value();
}

DeviceTime StepTimes::decode_time(std::int64_t num_decodes, std::int64_t context) {
  return remember(mutex_, decode_times_, std::pair{num_decodes, context}, [&] {
    const Batch batch{.num_decodes = num_decodes, .decode_context = num_decodes * context};
    const StepShape shape = executed_shape(batch, config_.mesh, config_.graph_batch_sizes);
    const bool graph = is_graph(batch);
    StepTemplates& templates = graph ? graph_templates_ : eager_.templates;
    return uneven(
        templates.apply() ? templates.time(shape) : step_time(graph ? graph_ : eager_.setup, shape),
        num_decodes);
  });
}

DeviceTime StepTimes::uneven(DeviceTime time, std::int64_t num_decodes) const {
  if (num_decodes < 2) return time;
  const std::int64_t kv_heads =
      std::max<std::int64_t>(config_.model.num_key_value_heads / config_.mesh.tp, 1);
  const bool are_few =
      rank_decodes(num_decodes) * kv_heads * 2 <= config_.machine->device().num_sms;
  const UnevenAttention& uneven = config_.uneven_attention;
  const auto layers =
      std::ranges::count(config_.model.layers, AttentionKind::kGqa, &LayerConfig::attention);
  const Seconds more = (are_few ? uneven.of_few : uneven.more) * static_cast<double>(layers);
  time.basis.interpolated += more;
  time.duration += more;
  return time;
}

DeviceTime StepTimes::mixed_time(Eager& eager, const Batch& batch) {
  return uneven(even_mixed_time(eager, batch), batch.num_decodes);
}

DeviceTime StepTimes::even_mixed_time(Eager& eager, const Batch& batch) {
  const StepShape shape = dealt_shape(batch, config_.mesh);
  if (eager.templates.apply()) return eager.templates.time(shape);
  const StepShape key = rounded(shape);
  return remember(mutex_, eager.times, key, [&] { return step_time(eager.setup, key); });
}

Seconds StepTimes::host_time(const Batch& batch) const {
  // Each data-parallel rank has a host process of its own.
  const std::int64_t sequences =
      rank_decodes(batch.num_decodes + static_cast<std::int64_t>(batch.prefill.size()));
  return config_.scheduler_base + config_.scheduler_per_sequence * static_cast<double>(sequences);
}

StepTime StepTimes::step(const Batch& batch, PowerBudget* budget, bool is_prepared) {
  if (batch.prefill.empty()) {
    const LeapTime one = leap(batch, 1);
    return {.duration = one.first, .basis = one.basis};
  }
  DeviceTime device = mixed_time(eager_, batch);
  if (budget != nullptr && limited_ != nullptr) {
    // Each stage of a pipeline has its part of the step, and pauses for the others.
    const auto stages = static_cast<double>(config_.mesh.pp);
    const Seconds full = device.duration / stages;
    const Seconds arithmetic = mixed_time(*arithmetic_, batch).duration / stages - full;
    const double part = budget->step(full, arithmetic);
    budget->rest(full * (stages - 1));
    if (part > 0) {
      const Seconds limited = mixed_time(*limited_, batch).duration;
      const Seconds duration = device.duration + (limited - device.duration) * part;
      device.basis = scaled(device.basis, duration / device.duration);
      device.duration = duration;
    }
  }
  const Seconds host =
      host_time(batch) + config_.prefill_base + (is_prepared ? Seconds(0) : config_.new_rows);
  return {.duration =
              config_.async_scheduling ? std::max(device.duration, host) : device.duration + host,
          .basis = device.basis};
}

// What a lowered clock adds to decodes wanes evenly, step by step, until the clock is full again.
StepTimes::Lowered StepTimes::lowered_clock(const Batch& batch, Seconds step,
                                            const PowerBudget* budget) {
  const double lowered = budget == nullptr ? 0 : budget->lowered();
  if (lowered <= 0) return {};
  const double longer = (power_limit()->decodes - 1) * lowered;
  const double share = std::min(step / budget->full_after(arithmetic_share(batch)), 1.0);
  return {.first = longer,
          .slope = -longer * share,
          // A slope below zero has no place beside a host that may be the slower one.
          .num_steps = config_.async_scheduling
                           ? 1
                           : static_cast<std::int64_t>(std::ceil(std::min(1 / share, 1e9)))};
}

double StepTimes::arithmetic_share(const Batch& batch) {
  if (config_.graph_arithmetic_cost == nullptr || !is_graph(batch) ||
      !graph_arithmetic_templates_.apply()) {
    return 0;
  }
  const double mean =
      static_cast<double>(batch.decode_context) / static_cast<double>(batch.num_decodes);
  const std::int64_t context = grid_point(grid_index(mean));
  const DeviceTime full = decode_time(batch.num_decodes, context);
  const DeviceTime with =
      remember(mutex_, arithmetic_times_, std::pair{batch.num_decodes, context}, [&] {
        const Batch at{.num_decodes = batch.num_decodes,
                       .decode_context = batch.num_decodes * context};
        return uneven(graph_arithmetic_templates_.time(
                          executed_shape(at, config_.mesh, config_.graph_batch_sizes)),
                      batch.num_decodes);
      });
  return with.duration / full.duration - 1;
}

LeapTime StepTimes::leap(const Batch& batch, std::int64_t max_steps, const PowerBudget* budget) {
  const auto n = static_cast<double>(batch.num_decodes);
  const double context = static_cast<double>(batch.decode_context) / n;  // grows by 1 each step
  const std::int64_t index = grid_index(context);
  const auto low = static_cast<double>(grid_point(index));
  const auto high = static_cast<double>(grid_point(index + 1));
  const DeviceTime at_low = decode_time(batch.num_decodes, grid_point(index));
  const DeviceTime at_high = decode_time(batch.num_decodes, grid_point(index + 1));

  LeapTime leap;
  leap.num_steps =
      std::clamp(static_cast<std::int64_t>(std::ceil(high - context)), std::int64_t{1}, max_steps);
  leap.slope = (at_high.duration - at_low.duration) / (high - low);
  leap.first = at_low.duration + leap.slope * (context - low);
  const Lowered lowered = lowered_clock(batch, leap.first, budget);
  leap.num_steps = std::min(leap.num_steps, lowered.num_steps);
  leap.slope += leap.first * lowered.slope;
  leap.first = leap.first * (1 + lowered.first);
  const Seconds host = host_time(batch);
  if (!config_.async_scheduling) {
    leap.first += host;
  } else if (leap.first < host) {
    // The host is the slower one until the device time, which grows, reaches it.
    const double steps = leap.slope > Seconds(0) ? (host - leap.first) / leap.slope : 1e18;
    const auto bound = static_cast<std::int64_t>(std::min(std::ceil(steps), 1e18));
    leap.num_steps = std::clamp(bound, std::int64_t{1}, leap.num_steps);
    leap.first = host;
    leap.slope = Seconds(0);
  }
  const auto steps = static_cast<double>(leap.num_steps);
  // Linear in the context, so the steps of the leap sum to as many of its middle.
  const double middle = (context + (steps - 1) / 2 - low) / (high - low);
  const double longer = 1 + lowered.first + lowered.slope * (steps - 1) / 2;
  leap.basis = scaled(mix(at_low.basis, at_high.basis, middle), steps * longer);
  return leap;
}

SimulatedSteps::SimulatedSteps(StepTimes& times) : times_(times) {
  if (times.power_limit() != nullptr) budget_.emplace(*times.power_limit());
}

void SimulatedSteps::spend() {
  if (!budget_ || now_ <= since_) return;
  const Seconds decoding = std::min(decoding_, now_ - since_);
  static_cast<void>(budget_->step(decoding, decoding * share_));
  budget_->rest(now_ - since_ - decoding);
  since_ = now_;
}

LeapTime SimulatedSteps::leap(const Batch& batch, std::int64_t max_steps) {
  spend();
  const LeapTime time = times_.leap(batch, max_steps, budget_ ? &*budget_ : nullptr);
  if (budget_) {
    decoding_ = leap_duration(time, time.num_steps);
    share_ = times_.arithmetic_share(batch);
  }
  return time;
}

bool SimulatedSteps::is_prepared(const Batch& batch) {
  if (!times_.prepares() || batch.prefill.empty()) return true;
  std::int64_t tokens = 0;
  for (const PrefillChunk& chunk : batch.prefill) tokens += chunk.query;
  const auto [entry, is_new] =
      prepared_.try_emplace({tokens, num_sampled(batch), batch.num_decodes});
  entry->second = ++num_runs_;
  if (prepared_.size() > kMostPrepared) {
    prepared_.erase(
        std::ranges::min_element(prepared_, {}, [](const auto& known) { return known.second; }));
  }
  return !is_new;
}

StepTime SimulatedSteps::run(const Batch& batch) {
  const bool known = is_prepared(batch);
  spend();
  const StepTime time = times_.step(batch, budget_ ? &*budget_ : nullptr, known);
  since_ = now_ + time.duration;
  decoding_ = Seconds(0);
  return time;
}

}  // namespace orrery
