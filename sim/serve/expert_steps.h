#pragma once

// Steps of a replica whose experts' load changes with time, or whose experts are placed anew while
// it serves (EPLB): each step is priced with the rows and experts of each rank that follow from the
// load and the placement in force when it begins.
//
//   steps      |....|....|....|======|....|....     = held up: experts move at the end of a step
//   load       [  interval 0     ][  interval 1 ...
//   placement  [ first             ][ by the load of the window of steps before
//
// Times of steps are kept for each pair of load and placement, so no step is priced anew.

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "sim/model/expert_drift.h"
#include "sim/parallel/expert_placement.h"
#include "sim/serve/expert_balance.h"
#include "sim/serve/simulated_steps.h"

namespace orrery {

struct ExpertChanges {
  ExpertDrift drift;
  ExpertPlacement first;  // at the start
  // None: experts stay where they are.
  std::optional<EplbConfig> eplb;
  // Where experts belong that are chosen so often.
  std::function<ExpertPlacement(std::span<const double> choices)> place;
  // Slots of a layer that differ, and how long the links take for them.
  struct Moves {
    std::int64_t num_slots = 0;
    Seconds time;
  };
  std::function<Moves(const ExpertPlacement& before, const ExpertPlacement& after)> moves;
  Bytes expert;                 // weights of one expert of one layer, over the ranks that share it
  std::int64_t num_layers = 1;  // with routed experts
  // Of these, on the pipeline stage with most: stages move theirs side by side.
  std::int64_t stage_layers = 1;
};

// Times of steps under each load and placement. Thread safe.
class ExpertStepTimes {
 public:
  // `config` but for its loads.
  ExpertStepTimes(SimulatedStepsConfig config, ExpertChanges changes);
  // Of interval `load` of the drift. Shared: replicas hold what the cache may have dropped.
  std::shared_ptr<StepTimes> find(std::int64_t load, const ExpertPlacement& placement);
  // How often a token chooses each expert.
  [[nodiscard]] std::vector<double> choices(std::int64_t load) const;
  [[nodiscard]] const ExpertChanges& changes() const { return changes_; }

 private:
  struct Kept {
    std::int64_t load = 0;
    ExpertPlacement placement;
    std::shared_ptr<StepTimes> times;
  };
  SimulatedStepsConfig config_;
  ExpertChanges changes_;
  ExpertPlacement in_order_;  // each expert once
  std::mutex mutex_;
  std::list<Kept> kept_;  // the last used first
};

class ExpertSteps : public StepBackend {
 public:
  // `times` outlives it; `steps` are those of a replica.
  ExpertSteps(ExpertStepTimes& times, std::unique_ptr<TimedSteps> steps);
  void starts(Seconds now) override;
  StepTime run(std::span<const Batch> ranks) override;
  FastForward fast_forward(std::span<const Batch> ranks, std::int64_t max_steps) override;
  void ends(std::int64_t num_steps) override;
  [[nodiscard]] const ExpertHistory* experts() const override { return &history_; }

 private:
  // Steps of one batch under one load.
  struct Seen {
    std::int64_t load = 0;
    std::int64_t num_steps = 0;
    double tokens = 0;  // of each
  };
  // A rebalance that has begun.
  struct Moving {
    ExpertPlacement to;
    Seconds layer;  // a layer takes so long
    std::int64_t layers_left = 0;
    Rebalance record;
  };

  // Steps until one at whose end experts move, that one included.
  [[nodiscard]] std::int64_t steps_to_moves() const;
  void see(std::int64_t num_steps);
  // Where experts belong by the load of the window.
  [[nodiscard]] Moving plan(Seconds at) const;
  // Moves what is due at the end of the step that would end `at`: by how much it is longer.
  Seconds move(Seconds at);
  [[nodiscard]] double balance(const ExpertPlacement& placement) const;

  ExpertStepTimes& times_;
  std::unique_ptr<TimedSteps> steps_;
  std::shared_ptr<StepTimes> in_force_;
  ExpertPlacement placement_;
  std::int64_t load_ = -1;  // none yet
  std::vector<double> choices_;
  Seconds now_;
  double tokens_ = 0;     // of the step that began
  bool is_seen_ = false;  // by the window already
  std::deque<Seen> window_;
  std::int64_t since_ = 0;  // steps since the last rebalance ended
  std::optional<Moving> moving_;
  ExpertHistory history_;
};

}  // namespace orrery
