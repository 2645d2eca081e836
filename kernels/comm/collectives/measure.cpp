#include "kernels/comm/collectives/measure.h"

#include <algorithm>
#include <memory>

#include "kernels/cuda/gate.h"

namespace orrery {
namespace {

struct Plan {
  int launches = 0;  // per sample
  int samples = 0;
};

// Enough launches that the ends of a sample do not show, enough samples for a median.
Plan plan_for(Seconds one) {
  if (one > Seconds(2e-3)) return {.launches = 3, .samples = 5};
  if (one > Seconds(2e-4)) return {.launches = 20, .samples = 7};
  return {.launches = 50, .samples = 11};
}

// Calls of one competitor on all ranks.
class Sampler {
 public:
  Sampler(const cuda::DeviceTeam& team, const EnqueueCollective& enqueue, LaunchMode mode)
      : team_(team), enqueue_(enqueue), mode_(mode), graphs_(team.size()) {
    for (int rank = 0; rank < team.size(); ++rank) {
      const cuda::DeviceGuard guard(team.devices()[rank]);
      events_.emplace_back();
      gate_.close(team.stream(rank));  // loads its kernel
    }
    gate_.open();
    team.synchronize();
    team.run([&](int rank) {  // a first call may set up what later ones use
      enqueue_(rank, team_.stream(rank));
      team_.stream(rank).synchronize();
    });
    plan_ = plan_for(sample(3, LaunchMode::kEager));
    if (mode == LaunchMode::kGraph) {
      team.run([&](int rank) {
        const cuda::Stream& stream = team_.stream(rank);
        graphs_[rank] = std::make_unique<cuda::Graph>(cuda::Graph::capture(stream, [&] {
          for (int launch = 0; launch < plan_.launches; ++launch) enqueue_(rank, stream);
        }));
      });
    }
  }
  [[nodiscard]] const Plan& plan() const { return plan_; }
  Seconds sample() { return sample(plan_.launches, mode_); }

 private:
  struct Events {
    cuda::Event begin;
    cuda::Event end;
  };

  Seconds sample(int launches, LaunchMode mode) {
    try {
      team_.run([&](int rank) { queue(rank, launches, mode); });
    } catch (...) {  // the streams must open before the error leaves
      gate_.open();
      throw;
    }
    gate_.open();
    Seconds longest;
    for (int rank = 0; rank < team_.size(); ++rank) {
      const cuda::DeviceGuard guard(team_.devices()[rank]);
      events_[rank].end.synchronize();
      longest = std::max(longest, events_[rank].end - events_[rank].begin);
    }
    return longest / launches;
  }

  void queue(int rank, int launches, LaunchMode mode) {
    const cuda::Stream& stream = team_.stream(rank);
    gate_.close(stream);
    enqueue_(rank, stream);
    events_[rank].begin.record(stream);
    if (mode == LaunchMode::kGraph) {
      graphs_[rank]->launch(stream);
    } else {
      for (int launch = 0; launch < launches; ++launch) enqueue_(rank, stream);
    }
    events_[rank].end.record(stream);
  }

  const cuda::DeviceTeam& team_;
  EnqueueCollective enqueue_;
  LaunchMode mode_;
  cuda::Gate gate_;
  std::vector<std::unique_ptr<cuda::Graph>> graphs_;
  std::vector<Events> events_;
  Plan plan_;
};

Measurement summary(std::vector<double>& times, int launches) {
  std::ranges::sort(times);
  const double median = times[times.size() / 2];
  return {.median = Seconds(median),
          .spread = (times[times.size() * 3 / 4] - times[times.size() / 4]) / median,
          .samples = static_cast<int>(times.size()),
          .launches = launches};
}

}  // namespace

std::vector<Measurement> measure_collectives(const cuda::DeviceTeam& team,
                                             std::span<const EnqueueCollective> competitors,
                                             LaunchMode mode) {
  constexpr int kWarmup = 2;
  std::vector<std::unique_ptr<Sampler>> samplers;
  int samples = 0;
  for (const EnqueueCollective& competitor : competitors) {
    samplers.push_back(std::make_unique<Sampler>(team, competitor, mode));
    samples = std::max(samples, samplers.back()->plan().samples);
  }
  std::vector<std::vector<double>> times(samplers.size());
  for (int round = 0; round < kWarmup + samples; ++round) {
    for (std::size_t i = 0; i < samplers.size(); ++i) {
      const Seconds time = samplers[i]->sample();
      if (round >= kWarmup) times[i].push_back(time.value());
    }
  }
  std::vector<Measurement> results;
  results.reserve(samplers.size());
  for (std::size_t i = 0; i < samplers.size(); ++i) {
    results.push_back(summary(times[i], samplers[i]->plan().launches));
  }
  return results;
}

}  // namespace orrery
