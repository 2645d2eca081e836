#include "sim/serve/autoscaler.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace orrery {

ScalingPolicy::ScalingPolicy(const AutoscalingConfig& config, int initial) : config_(config) {
  recent_.emplace_back(0, initial);
}

int ScalingPolicy::desired(Seconds now, double sum, int ready, int starting) {
  const int current = ready + starting;
  const auto is_near = [&](double replicas) {
    return std::abs(sum / (replicas * config_.target) - 1) <= config_.tolerance;
  };
  // Those that start count as idle where more are asked for, and not at all where fewer are.
  const bool asks_for_more = sum > ready * config_.target;
  int asked = current;
  if (!is_near(ready) && !(asks_for_more && is_near(current))) {
    const double most = config_.max_replicas;
    asked = static_cast<int>(std::min(std::ceil(sum / config_.target), most));
    if (asks_for_more) asked = std::max(asked, current);
  }
  asked = std::clamp(asked, config_.min_replicas, config_.max_replicas);
  while (!recent_.empty() && recent_.front().first < now - config_.scale_down_delay) {
    recent_.pop_front();
  }
  recent_.emplace_back(now, asked);
  if (asked >= current) return asked;
  const auto most = std::ranges::max_element(recent_, {}, &std::pair<Seconds, int>::second);
  return std::min(most->second, current);
}

Autoscaler::Autoscaler(const AutoscalingConfig& config, int initial)
    : config_(config),
      policy_(config, initial),
      places_(static_cast<std::size_t>(config.max_replicas)),
      next_decision_(config.interval) {
  for (int i = 0; i < initial; ++i) {
    places_[static_cast<std::size_t>(i)] = {.state = State::kReady};
  }
  record(Seconds(0));
}

int Autoscaler::count(State state) const {
  return static_cast<int>(std::ranges::count(places_, state, &Place::state));
}

void Autoscaler::record(Seconds now) {
  const ReplicaCount counts{.time = now,
                            .ready = count(State::kReady),
                            .starting = count(State::kStarting),
                            .draining = count(State::kDraining)};
  metrics_.most_replicas =
      std::max(metrics_.most_replicas, counts.ready + counts.starting + counts.draining);
  if (!metrics_.counts.empty() && metrics_.counts.back().time == now) {
    metrics_.counts.back() = counts;
  } else {
    metrics_.counts.push_back(counts);
  }
}

void Autoscaler::open_started(Seconds now, const Service& service) {
  std::vector<std::pair<Seconds, std::size_t>> started;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].state == State::kStarting && places_[i].ready <= now) {
      started.emplace_back(places_[i].ready, i);
    }
  }
  std::ranges::sort(started);
  for (const auto& [time, place] : started) {
    places_[place].state = State::kReady;
    service.open(place);
    record(time);
  }
}

void Autoscaler::turn(Seconds now, const Service& service) {
  open_started(now, service);
  if (now < next_decision_) return;
  // By multiplication, so that a long run's decisions stay at multiples of the interval.
  next_decision_ = config_.interval * static_cast<double>(++num_decisions_ + 1);
  double sum = 0;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].state == State::kReady) sum += service.metric(i);
  }
  const int ready = count(State::kReady);
  const int starting = count(State::kStarting);
  const int desired = policy_.desired(now, sum, ready, starting);
  if (desired > ready + starting) add(now, desired - ready - starting, service);
  if (desired < ready + starting) remove(now, ready + starting - desired, service);
}

// One that drains still has its place: where none is left the next decision asks again.
void Autoscaler::add(Seconds now, int replicas, const Service& service) {
  for (Place& place : places_) {
    if (replicas == 0) break;
    if (place.state != State::kOff) continue;
    place = {.state = State::kStarting, .since = now, .ready = now + config_.start_up};
    ++metrics_.num_starts;
    --replicas;
  }
  record(now);
  open_started(now, service);
}

void Autoscaler::remove(Seconds now, int replicas, const Service& service) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (places_[i].state == State::kStarting || places_[i].state == State::kReady) {
      order.push_back(i);
    }
  }
  std::ranges::sort(order, {}, [&](std::size_t i) {
    return std::tuple(places_[i].state != State::kStarting, -places_[i].ready.value(),
                      places_.size() - i);
  });
  order.resize(static_cast<std::size_t>(replicas));
  for (const std::size_t i : order) {
    if (places_[i].state == State::kStarting) {
      stop(now, i);
      continue;
    }
    places_[i].state = State::kDraining;
    draining_.push_back(i);
    service.close(i);
  }
  record(now);
}

void Autoscaler::stop(Seconds now, std::size_t place) {
  stopped_time_ += now - places_[place].since;
  places_[place].state = State::kOff;
  ++metrics_.num_stops;
  std::erase(draining_, place);
  record(now);
}

AutoscalingMetrics Autoscaler::metrics(Seconds end) const {
  AutoscalingMetrics metrics = metrics_;
  metrics.time = end;
  metrics.replica_time = stopped_time_;
  for (const Place& place : places_) {
    if (place.state != State::kOff) metrics.replica_time += std::max(end - place.since, Seconds(0));
  }
  return metrics;
}

}  // namespace orrery
