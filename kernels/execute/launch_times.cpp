// How long the host takes to enqueue each op of a step that is launched op by op.

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <vector>

#include "kernels/execute/executor_state.h"
#include "kernels/execute/rank_step.h"

namespace orrery {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

void RankStep::enqueue_timed(std::vector<double>& seconds) {
  seconds.resize(tasks_.size());
  launch_times_ = &seconds;
  try {
    enqueue_step(/*replays=*/false);
    rank_.watch().waiting(rank_.rank());
    launch_times_ = nullptr;
  } catch (...) {  // named, and thrown again
    launch_times_ = nullptr;
    rethrow_named();
  }
}

std::vector<LaunchTime> Executor::launch_times(PreparedStep& step, const StepInput& input,
                                               int runs) {
  State& state = *state_;
  PreparedStep::State& prepared = step.state();
  const std::vector<StepPart> parts = state.split(prepared, input);
  state.bind_again(prepared, parts, input);
  std::vector<std::map<OpId, std::vector<double>>> by_rank(static_cast<std::size_t>(num_ranks()));
  for (int run = 0; run < runs; ++run) {
    state.run_watched(prepared, [&](int r) {
      RankStep& own = prepared.rank(r);
      own.stage(state.parts_of(prepared, parts, r), parts);
      std::vector<double> seconds;
      own.enqueue_timed(seconds);
      own.wait();
      auto& of_rank = by_rank[static_cast<std::size_t>(r)];
      for (std::size_t i = 0; i < seconds.size(); ++i) {
        of_rank[own.tasks()[i].op].push_back(seconds[i]);
      }
    });
  }
  std::vector<LaunchTime> all;
  for (const int r : ranks()) {
    for (const auto& [op, seconds] : by_rank[static_cast<std::size_t>(r)]) {
      const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
      all.push_back({.op = printed_name(prepared.plan.ops()[static_cast<std::size_t>(op)]),
                     .rank = r,
                     .launches = std::ssize(seconds) / runs,
                     .mean = Seconds(sum / static_cast<double>(seconds.size())),
                     .median = Seconds(median(seconds))});
    }
  }
  return all;
}

}  // namespace orrery
