#include "sim/serve/simulated_steps.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "sim/parallel/rank_rows.h"
#include "sim/serve/fast_forward.h"

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
      eager_(setup(config_, config_.eager_cost)) {
  if (config_.decode_piece_cost != nullptr) {
    decode_pieces_.emplace(setup(config_, config_.decode_piece_cost));
  }
  if (config_.mixed_piece_cost != nullptr) {
    mixed_pieces_.emplace(setup(config_, config_.mixed_piece_cost));
  }
  if (!std::ranges::is_sorted(config_.graph_batch_sizes) ||
      (!config_.graph_batch_sizes.empty() && config_.graph_batch_sizes.front() < 1)) {
    throw std::invalid_argument("graph_batch_sizes must ascend and be at least 1");
  }
}

bool StepTimes::is_graph(const Batch& batch) const {
  return graph_rows(batch, config_.mesh.dp, config_.graph_batch_sizes).has_value();
}

namespace {

// Of a step in pieces: its cost model's eager launch is the host's time of a layer's launches,
// which go on while the GPU runs the piece before.
DeviceTime at_least_host(DeviceTime time, const StepSetup& setup) {
  const double layers = static_cast<double>(setup.model.layers.size()) / setup.mesh.pp;
  time.duration = std::max(time.duration, setup.cost->options().host.eager_launch * layers);
  return time;
}

}  // namespace

StepTimes::Launched& StepTimes::launched(const Batch& batch) {
  if (is_graph(batch)) return graph_;
  std::int64_t tokens = batch.num_decodes;
  for (const PrefillChunk& chunk : batch.prefill) tokens += chunk.query;
  std::optional<Launched>& pieces = batch.prefill.empty() ? decode_pieces_ : mixed_pieces_;
  return pieces && tokens <= config_.max_piece_tokens * config_.mesh.dp ? *pieces : eager_;
}

DeviceTime StepTimes::decode_time(std::int64_t num_decodes, std::int64_t context) {
  return remember(mutex_, decode_times_, std::pair{num_decodes, context}, [&] {
    const Batch batch{.num_decodes = num_decodes, .decode_context = num_decodes * context};
    const StepShape shape = executed_shape(batch, config_.mesh, config_.graph_batch_sizes);
    Launched& way = launched(batch);
    DeviceTime time =
        way.templates.apply() ? way.templates.time(shape) : step_time(way.setup, shape);
    if (decode_pieces_ && &way == &*decode_pieces_) time = at_least_host(time, way.setup);
    correct_device(config_, num_decodes, time);
    return time;
  });
}

DeviceTime StepTimes::device_time(const Batch& batch) {
  return step_time(launched(batch).setup,
                   executed_shape(batch, config_.mesh, config_.graph_batch_sizes));
}

DeviceTime StepTimes::even_mixed_time(const Batch& batch) {
  const StepShape shape = dealt_shape(batch, config_.mesh);
  Launched& way = launched(batch);
  const bool is_pieces = mixed_pieces_ && &way == &*mixed_pieces_;
  DeviceTime time;
  if (way.templates.apply()) {
    time = way.templates.time(shape);
  } else {
    const StepShape key = rounded(shape);
    time = remember(mutex_, way.mixed_times, key, [&] { return step_time(way.setup, key); });
  }
  return is_pieces ? at_least_host(time, way.setup) : time;
}

StepTime StepTimes::step(const Batch& batch, PowerBudget* budget, bool is_prepared) {
  return step_of(batch, budget, is_prepared, nullptr);
}

StepTime StepTimes::step_of(const Batch& batch, PowerBudget* budget, bool is_prepared,
                            std::vector<AppliedStepCorrection>* applied) {
  if (batch.prefill.empty()) {
    const FastForward one = fast_forward_of(batch, 1, nullptr, applied);
    return {.duration = one.first, .basis = one.basis, .energy = one.energy};
  }
  DeviceTime device = even_mixed_time(batch);
  correct_device(config_, batch.num_decodes, device, applied);
  StepPrice price{.first = device.duration,
                  .basis = device.basis,
                  .limited = device.limited,
                  .arithmetic = device.arithmetic};
  correct_prefill({.config = config_, .batch = batch, .budget = budget, .is_prepared = is_prepared},
                  price, applied);
  return {.duration = price.first,
          .basis = price.basis,
          .energy = within_limit(device.energy, price.first)};
}

std::vector<AppliedStepCorrection> StepTimes::explain(const Batch& batch, PowerBudget* budget,
                                                      bool is_prepared) {
  std::vector<AppliedStepCorrection> applied;
  if (batch.prefill.empty()) {
    static_cast<void>(fast_forward_of(batch, 1, budget, &applied));
  } else {
    static_cast<void>(step_of(batch, budget, is_prepared, &applied));
  }
  return applied;
}

double StepTimes::arithmetic_share(const Batch& batch) {
  if (power_limit() == nullptr) return 0;
  const double mean =
      static_cast<double>(batch.decode_context) / static_cast<double>(batch.num_decodes);
  const DeviceTime time = decode_time(batch.num_decodes, grid_point(grid_index(mean)));
  return time.arithmetic / time.duration;
}

StepTimes::Piece StepTimes::piece_at(std::int64_t num_decodes, double context) {
  const std::int64_t index = grid_index(context);
  Piece piece{.low = decode_time(num_decodes, grid_point(index)),
              .high = decode_time(num_decodes, grid_point(index + 1)),
              .first_context = static_cast<double>(grid_point(index)),
              .last_context = static_cast<double>(grid_point(index + 1))};
  StepPrice& price = piece.price;
  price.slope =
      (piece.high.duration - piece.low.duration) / (piece.last_context - piece.first_context);
  price.first = piece.low.duration + price.slope * (context - piece.first_context);
  price.num_steps = static_cast<std::int64_t>(std::ceil(piece.last_context - context));
  return piece;
}

FastForward StepTimes::fast_forward(const Batch& batch, std::int64_t max_steps,
                                    const PowerBudget* budget) {
  return fast_forward_of(batch, max_steps, budget, nullptr);
}

FastForward StepTimes::fast_forward_of(const Batch& batch, std::int64_t max_steps,
                                       const PowerBudget* budget,
                                       std::vector<AppliedStepCorrection>* applied) {
  const double context =  // grows by 1 each step
      static_cast<double>(batch.decode_context) / static_cast<double>(batch.num_decodes);
  Piece piece = piece_at(batch.num_decodes, context);
  StepPrice& price = piece.price;
  price.num_steps = std::clamp(price.num_steps, std::int64_t{1}, max_steps);
  std::optional<PowerBudget> left;
  if (budget != nullptr) left = *budget;
  correct_decodes({.config = config_,
                   .batch = batch,
                   .budget = left ? &*left : nullptr,
                   .arithmetic_share = left ? arithmetic_share(batch) : 0},
                  price, applied);
  FastForward fast{.num_steps = price.num_steps, .first = price.first, .slope = price.slope};
  const auto steps = static_cast<double>(fast.num_steps);
  // Linear in the context, so the steps of the fast-forward sum to as many of its middle.
  const double middle = (context + (steps - 1) / 2 - piece.first_context) /
                        (piece.last_context - piece.first_context);
  const double longer = 1 + price.throttling + price.throttling_slope * (steps - 1) / 2;
  fast.basis = scaled(mix(piece.low.basis, piece.high.basis, middle), steps * longer);
  const Joules energy = piece.low.energy * (1 - middle) + piece.high.energy * middle;
  fast.energy = within_limit(energy * steps, fast_forward_duration(fast, fast.num_steps));
  return fast;
}

Joules StepTimes::within_limit(Joules energy, Seconds duration) const {
  const Device& device = config_.machine->device();
  if (!device.power || device.tdp <= device.power->waiting) return energy;
  return std::min(energy,
                  (device.tdp - device.power->waiting) * duration * num_ranks(config_.mesh));
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

FastForward SimulatedSteps::fast_forward(const Batch& batch, std::int64_t max_steps) {
  spend();
  const FastForward time = times_.fast_forward(batch, max_steps, budget_ ? &*budget_ : nullptr);
  if (budget_) {
    decoding_ = fast_forward_duration(time, time.num_steps);
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
