// One engine step in detail, and which step of a run that is.

#include <algorithm>
#include <compare>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/parallel/rank_rows.h"
#include "sim/scenario/assembly.h"
#include "sim/scenario/run.h"
#include "sim/scenario/step_limits.h"
#include "sim/serve/megakernel_step.h"
#include "sim/serve/step_time.h"

namespace orrery {

namespace {

// The mean over ranks of each op's summed time; ops of equal name together.
std::vector<StepShare> op_shares(const Timeline& timeline) {
  std::map<int, double> weights;
  for (const auto& [rank, count] : timeline.represented) {
    weights[rank] = count;
  }
  if (weights.empty()) {
    for (const Span& span : timeline.spans) {
      weights[span.rank] = 1;
    }
  }
  const double num_ranks =
      std::accumulate(weights.begin(), weights.end(), 0.0,
                      [](double sum, const auto& entry) { return sum + entry.second; });

  struct Sum {
    SpanKind kind = SpanKind::kKernel;
    std::map<Basis, Seconds> by_basis;
  };
  std::map<std::string, Sum> sums;
  for (const Span& span : timeline.spans) {
    Sum& sum = sums[timeline.op_names[static_cast<std::size_t>(span.op)]];
    sum.kind = span.kind;
    sum.by_basis[span.basis] += (span.end - span.start) * (weights[span.rank] / num_ranks);
  }
  std::vector<StepShare> shares;
  for (const auto& [name, sum] : sums) {
    StepShare share;
    share.op = name;
    share.kind = sum.kind;
    Seconds most;
    for (const auto& [basis, time] : sum.by_basis) {
      share.time += time;
      if (time > most) {
        most = time;
        share.basis = basis;
      }
    }
    shares.push_back(share);
  }
  return shares;
}

// Time of the first rank on which nothing runs: gaps between graph nodes or launches.
Seconds idle_time(const Timeline& timeline) {
  if (timeline.spans.empty()) {
    return Seconds(0);
  }
  const int rank = timeline.spans.front().rank;
  Seconds idle;
  Seconds reached;
  for (const Span& span : timeline.spans) {  // ordered by start
    if (span.rank == rank) {
      idle += std::max(Seconds(0), span.start - reached);
      reached = std::max(reached, span.end);
    }
  }
  return idle;
}

std::vector<StepShare> step_shares(const Timeline& timeline) {
  std::vector<StepShare> shares = op_shares(timeline);
  if (const Seconds idle = idle_time(timeline); idle > Seconds(0)) {
    StepShare gaps;
    gaps.op = "gaps between kernels";
    gaps.kind = SpanKind::kHost;
    gaps.time = idle;
    shares.push_back(gaps);
  }
  Seconds total;
  for (const StepShare& share : shares) {
    total += share.time;
  }
  for (StepShare& share : shares) {
    share.share = total > Seconds(0) ? share.time / total : 0;
  }
  // By name where times are equal, so that the order is one.
  std::ranges::sort(shares, [](const StepShare& a, const StepShare& b) {
    return a.time != b.time ? a.time > b.time : a.op < b.op;
  });
  return shares;
}

// `num_prefills` chunks as equal as can be, without cached tokens (records do not keep them).
Batch batch_of(const StepRecord& step) {
  Batch batch;
  for (std::int64_t i = 0; i < step.num_prefills; ++i) {
    const std::int64_t query =
        step.prefill_tokens / step.num_prefills + (i < step.prefill_tokens % step.num_prefills);
    if (query > 0) {
      PrefillChunk chunk;
      chunk.query = query;
      batch.prefill.push_back(chunk);
    }
  }
  batch.num_decodes = step.num_decodes;
  batch.decode_context = step.decode_context;
  return batch;
}

}  // namespace

Batch median_decode_step(const ServiceResult& service) {
  struct Timed {
    Seconds time;
    std::int64_t num_steps = 0;
    auto operator<=>(const Timed&) const = default;
  };
  const auto time_of = [](const StepRecord& step) {
    return step.duration / static_cast<double>(step.num_steps);
  };
  std::vector<Timed> chosen;  // and not the records: there may be millions
  bool wants_decode = true;
  const auto choose = [&] {
    for_each_step(service, [&](const StepRecord& step) {
      if ((step.num_prefills == 0) == wants_decode) {
        chosen.push_back({.time = time_of(step), .num_steps = step.num_steps});
      }
    });
  };
  choose();
  if (chosen.empty()) {
    wants_decode = false;
    choose();
  }
  if (chosen.empty()) {
    return {};
  }
  std::ranges::sort(chosen);
  const std::int64_t num_steps =
      std::transform_reduce(chosen.begin(), chosen.end(), std::int64_t{0}, std::plus<>(),
                            [](const Timed& timed) { return timed.num_steps; });
  Seconds median;
  std::int64_t shorter = 0;  // steps that take less than `median`
  std::int64_t seen = 0;
  for (const Timed& timed : chosen) {
    if (timed.time != median) {
      median = timed.time;
      shorter = seen;
    }
    seen += timed.num_steps;
    if (2 * seen >= num_steps) {
      break;
    }
  }
  // Of those that take as long, the one that is in the middle by their order.
  std::optional<Batch> found;
  for_each_step(service, [&](const StepRecord& step) {
    if (found || (step.num_prefills == 0) != wants_decode || time_of(step) != median) {
      return;
    }
    shorter += step.num_steps;
    if (2 * shorter >= num_steps) {
      found = batch_of(step);
    }
  });
  return found.value_or(Batch{});
}

StepResult simulate_step(const Assembly& assembly, const Scenario& scenario, const Batch& batch,
                         StepLevel level) {
  StepResult result;
  result.batch = batch;
  result.level = level;
  const std::vector<std::int64_t> sizes = graph_batch_sizes(scenario);
  const LaunchMode mode = launch_mode(scenario, batch);
  result.plan = at_key(scenario, "model", [&] {
    StepShape shape = executed_shape(batch, scenario.mesh, sizes);
    if (mode == LaunchMode::kMegakernel) shape = megakernel_shape(shape);
    return step_plan(scenario.model_config, shape, lowering_options(scenario), scenario.mesh);
  });
  SimulateOptions options;
  options.level = level;
  result.timeline = at_key(scenario, "provider", [&] {
    if (mode == LaunchMode::kMegakernel) {
      return megakernel_timeline(result.plan, scenario.machine_spec.device.num_sms,
                                 megakernel_times(scenario));
    }
    return simulate(price_repeated(assembly, scenario, result.plan, mode), assembly.machine(),
                    assembly.cost(mode), options);
  });
  // A trace has nanoseconds.
  constexpr Seconds kLongest(1e9);
  at_key(scenario, "machine", [&] {
    if (const Seconds found = makespan(result.timeline); !(found <= kLongest)) {
      throw std::invalid_argument("a step takes " + to_text(found) + ", expected at most " +
                                  to_text(kLongest) + "; check its rates and latencies");
    }
  });
  result.shares = step_shares(result.timeline);
  result.sides = step_sides(result.plan, result.timeline, scenario.mesh);
  return result;
}

StepResult simulate_step(const Scenario& scenario, const Batch& batch, StepLevel level) {
  check_fits("the step", batch, scenario, memory_budget(scenario));
  return simulate_step(Assembly(scenario), scenario, batch, level);
}

}  // namespace orrery
