#pragma once

// How many replicas a service has, by a policy that is stated: what Kubernetes' horizontal pod
// autoscaler does with a target of an average value (and so KServe's and KEDA's, which set one up).
//
//   every interval    desired = ceil(sum of the metric over ready replicas / target),
//                     no change where that is within the tolerance of what there is
//   scale up          at once: a replica starts, and takes requests `start_up` later
//   scale down        to the most that was desired within `scale_down_delay`; starting ones go
//                     first, then those that are ready for the shortest time: they take no more
//                     requests and stop when they have served what they have
//
// Source: kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale, Algorithm details and
// Stabilization window; pkg/controller/podautoscaler/replica_calculator.go. Its limits of how many
// pods come at once are left out.
//
// Not thread safe.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "sim/serve/serve.h"
#include "sim/units/units.h"

namespace orrery {

// The decision, apart from what replicas do.
class ScalingPolicy {
 public:
  // `initial` replicas were desired at time 0.
  ScalingPolicy(const AutoscalingConfig& config, int initial);
  // How many replicas there should be at `now`, not before an earlier call, where the metric of
  // `ready` ones sums up to `sum` and `starting` more are on their way.
  [[nodiscard]] int desired(Seconds now, double sum, int ready, int starting);

 private:
  AutoscalingConfig config_;
  std::deque<std::pair<Seconds, int>> recent_;  // recommendations, by time
};

// Places of replicas, of which as many are in use as there are replicas at the time.
class Autoscaler {
 public:
  // What it asks of the service.
  struct Service {
    std::function<double(std::size_t place)> metric;  // of a ready one, now
    std::function<void(std::size_t place)> open;      // takes requests from now on
    std::function<void(std::size_t place)> close;     // takes none any more
  };
  // `initial` replicas are ready at time 0.
  Autoscaler(const AutoscalingConfig& config, int initial);

  [[nodiscard]] const AutoscalingConfig& config() const { return config_; }
  // When it decides next.
  [[nodiscard]] Seconds next() const { return next_decision_; }
  // What is due by `now`: replicas that have started, and a decision.
  void turn(Seconds now, const Service& service);
  // Those that drain, which the service tells of when they are empty.
  [[nodiscard]] const std::vector<std::size_t>& draining() const { return draining_; }
  void stop(Seconds now, std::size_t place);
  [[nodiscard]] AutoscalingMetrics metrics(Seconds end) const;

 private:
  enum class State : std::uint8_t { kOff, kStarting, kReady, kDraining };
  struct Place {
    State state = State::kOff;
    Seconds since;  // it began to start
    Seconds ready;  // it takes requests
  };

  [[nodiscard]] int count(State state) const;
  void open_started(Seconds now, const Service& service);
  void add(Seconds now, int replicas, const Service& service);
  void remove(Seconds now, int replicas, const Service& service);
  void record(Seconds now);

  AutoscalingConfig config_;
  ScalingPolicy policy_;
  std::vector<Place> places_;
  std::vector<std::size_t> draining_;
  Seconds next_decision_;
  std::int64_t num_decisions_ = 0;
  Seconds stopped_time_;  // of replicas that are gone
  AutoscalingMetrics metrics_;
};

}  // namespace orrery
