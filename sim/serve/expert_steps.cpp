#include "sim/serve/expert_steps.h"

#include <algorithm>
#include <utility>

#include "sim/parallel/expert_moves.h"
#include "sim/serve/fast_forward.h"

namespace orrery {
namespace {

// Pairs of load and placement whose times are kept: replicas are under few of them at once.
constexpr std::size_t kMostKept = 16;

double num_tokens_of(std::span<const Batch> ranks) {
  double tokens = 0;
  for (const Batch& batch : ranks) tokens += static_cast<double>(num_tokens(batch));
  return tokens;
}

}  // namespace

ExpertStepTimes::ExpertStepTimes(SimulatedStepsConfig config, ExpertChanges changes)
    : config_(std::move(config)),
      changes_(std::move(changes)),
      in_order_(placement_in_order(config_.model.num_experts, 0, config_.mesh.ep)) {}

std::vector<double> ExpertStepTimes::choices(std::int64_t load) const {
  return choice_probabilities(changes_.drift.load(load), config_.model.num_experts,
                              config_.model.num_experts_per_tok);
}

std::shared_ptr<StepTimes> ExpertStepTimes::find(std::int64_t load,
                                                 const ExpertPlacement& placement) {
  const std::scoped_lock lock(mutex_);
  const auto known = std::ranges::find_if(
      kept_, [&](const Kept& kept) { return kept.load == load && kept.placement == placement; });
  if (known != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, known);
    return kept_.front().times;
  }
  SimulatedStepsConfig config = config_;
  const ExpertLoad experts = changes_.drift.load(load);
  config.lowering.expert_load = experts;
  config.mesh.expert_load = placement == in_order_
                                ? experts
                                : placed_load(placement, experts, config.model.num_experts,
                                              config.model.num_experts_per_tok);
  kept_.push_front({.load = load,
                    .placement = placement,
                    .times = std::make_shared<StepTimes>(std::move(config))});
  if (kept_.size() > kMostKept) kept_.pop_back();
  return kept_.front().times;
}

ExpertSteps::ExpertSteps(ExpertStepTimes& times, std::unique_ptr<TimedSteps> steps)
    : times_(times), steps_(std::move(steps)), placement_(times.changes().first) {}

double ExpertSteps::balance(const ExpertPlacement& placement) const {
  return 1 / imbalance(placement, choices_);
}

void ExpertSteps::starts(Seconds now) {
  now_ = now;
  const std::int64_t load = times_.changes().drift.index_at(now);
  if (load != load_) {
    load_ = load;
    choices_ = times_.choices(load);
    in_force_.reset();
  }
  if (!in_force_) {
    in_force_ = times_.find(load_, placement_);
    steps_->use(*in_force_);
    const double found = balance(placement_);
    std::vector<BalanceFrom>& balances = history_.balances;
    if (balances.empty() || balances.back().balance != found) {
      balances.push_back({.time = now, .balance = found});
    }
  }
  steps_->starts(now);
}

std::int64_t ExpertSteps::steps_to_moves() const {
  const std::optional<EplbConfig>& eplb = times_.changes().eplb;
  if (!eplb) return std::numeric_limits<std::int64_t>::max();
  return moving_ ? 1 : eplb->step_interval - since_;
}

void ExpertSteps::see(std::int64_t num_steps) {
  if (!times_.changes().eplb) return;
  window_.push_back({.load = load_, .num_steps = num_steps, .tokens = tokens_});
  std::int64_t beyond = -times_.changes().eplb->window_size;
  for (const Seen& seen : window_) beyond += seen.num_steps;
  while (beyond > 0) {
    Seen& oldest = window_.front();
    const std::int64_t gone = std::min(beyond, oldest.num_steps);
    beyond -= gone;
    oldest.num_steps -= gone;
    if (oldest.num_steps == 0) window_.pop_front();
  }
}

ExpertSteps::Moving ExpertSteps::plan(Seconds at) const {
  const ExpertChanges& changes = times_.changes();
  std::vector<double> seen(choices_.size());
  std::int64_t load = load_;
  std::vector<double> choices = choices_;
  for (const Seen& steps : window_) {
    if (steps.load != load) choices = times_.choices(load = steps.load);
    const double tokens = steps.tokens * static_cast<double>(steps.num_steps);
    for (std::size_t i = 0; i < seen.size(); ++i) seen[i] += tokens * choices[i];
  }
  Moving moving{.to = keeping_slots(placement_, changes.place(seen)),
                .layers_left = changes.stage_layers};
  const ExpertChanges::Moves moves = changes.moves(placement_, moving.to);
  if (moves.num_slots > 0) moving.layer = moves.time + changes.eplb->layer_overhead;
  moving.record = {
      .time = at,
      .step = history_.num_steps + 1,
      .num_slots = moves.num_slots,
      .moved = changes.expert * static_cast<double>(moves.num_slots * changes.num_layers),
      .balance_before = balance(placement_),
      .balance_after = balance(moving.to)};
  return moving;
}

Seconds ExpertSteps::move(Seconds at) {
  if (steps_to_moves() > 1) return Seconds(0);
  see(1);
  is_seen_ = true;
  if (!moving_) moving_ = plan(at);
  const std::int64_t most = times_.changes().eplb->layers_per_step;
  const std::int64_t layers =
      most == 0 ? moving_->layers_left : std::min(most, moving_->layers_left);
  const Seconds held_up = moving_->layer * static_cast<double>(layers);
  moving_->layers_left -= layers;
  moving_->record.held_up += held_up;
  return held_up;
}

StepTime ExpertSteps::run(std::span<const Batch> ranks) {
  tokens_ = num_tokens_of(ranks);
  StepTime time = steps_->run(ranks);
  const Seconds held_up = move(now_ + time.duration);
  time.duration += held_up;
  for (Seconds& rank : time.ranks) rank += held_up;
  return time;
}

FastForward ExpertSteps::fast_forward(std::span<const Batch> ranks, std::int64_t max_steps) {
  tokens_ = num_tokens_of(ranks);
  const std::int64_t until_moves = std::max<std::int64_t>(steps_to_moves() - 1, 1);
  FastForward time = steps_->fast_forward(ranks, std::min(max_steps, until_moves));
  if (const Seconds end = times_.changes().drift.end_of(load_); end < kNever) {
    const std::int64_t steps = steps_to_reach(time, end - now_);
    if (steps < time.num_steps) time = steps_->fast_forward(ranks, steps);
  }
  const Seconds held_up = move(now_ + time.first);
  time.first += held_up;
  for (Seconds& rank : time.ranks) rank += held_up;
  return time;
}

void ExpertSteps::ends(std::int64_t num_steps) {
  if (!std::exchange(is_seen_, false)) see(num_steps);
  since_ += num_steps;
  history_.num_steps += num_steps;
  history_.balance_steps += history_.balances.back().balance * static_cast<double>(num_steps);
  if (!moving_ || moving_->layers_left > 0) return;
  placement_ = std::move(moving_->to);
  history_.rebalances.push_back(moving_->record);
  moving_.reset();
  since_ = 0;
  in_force_.reset();
}

}  // namespace orrery
