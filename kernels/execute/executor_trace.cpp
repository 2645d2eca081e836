#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "kernels/cuda/gate.h"
#include "kernels/cuda/kernel_trace.h"
#include "kernels/execute/executor_state.h"
#include "kernels/execute/step_trace.h"

namespace orrery {

int Executor::num_launches(PreparedStep& step, int rank) {
  PreparedStep::State& prepared = step.state();
  state_->count_nodes(prepared);
  const std::vector<int>& nodes = prepared.rank(rank).num_nodes();
  return std::accumulate(nodes.begin(), nodes.end(), 0);
}

StepTrace Executor::trace(PreparedStep& step, const StepInput& input) {
  State& state = *state_;
  PreparedStep::State& prepared = step.state();
  if (prepared.mode == LaunchMode::kMegakernel) {
    throw std::invalid_argument("a step that is one kernel has no spans of ops");
  }
  const std::vector<StepPart> parts = state.split(prepared, input);
  state.bind_again(prepared, parts, input);
  // What is enqueued may depend on counts that the host reads while it runs.
  if (!prepared.has_run) static_cast<void>(state.run(prepared, parts));
  KernelTrace trace;
  const bool is_graph = prepared.mode == LaunchMode::kGraph;
  state.count_nodes(prepared);
  // CUPTI makes launching a graph take hundreds of microseconds, one rank after another: ranks are
  // held until all have launched. Launches one by one would fill the queue behind a gate.
  std::optional<cuda::Gate> gate;
  if (is_graph && ranks().size() > 1) gate.emplace();
  cuda::Gate* const held = gate ? &*gate : nullptr;
  static_cast<void>(state.run(prepared, parts, held));
  static_cast<void>(trace.take());
  static_cast<void>(state.run(prepared, parts, held));
  const std::vector<KernelRecord> records = trace.take();

  StepTrace found;
  Timeline& timeline = found.timeline;
  for (const Op& op : prepared.plan.ops()) timeline.op_names.push_back(printed_name(op));
  for (const int r : ranks()) {
    const RankStep& own = prepared.rank(r);
    const RankTrace of{.rank = r,
                       .device = state.setup.devices[static_cast<std::size_t>(r)],
                       .mode = prepared.mode,
                       .tasks = own.tasks(),
                       .num_nodes = own.num_nodes(),
                       .num_before = own.num_nodes_before(),
                       .num_after = own.num_results()};
    std::ranges::copy(trace_spans(prepared.plan, of, records), std::back_inserter(timeline.spans));
    std::ranges::copy(launched_kernels(prepared.plan, of, records),
                      std::back_inserter(found.kernels));
  }
  if (timeline.spans.empty()) return found;
  start_collectives_together(timeline.spans);
  const Seconds start = std::ranges::min(timeline.spans, {}, &Span::start).start;
  for (Span& span : timeline.spans) {
    span.start -= start;
    span.end -= start;
  }
  std::ranges::stable_sort(timeline.spans, {}, [](const Span& span) {
    return std::tuple(span.start, span.rank, span.stream);
  });
  return found;
}

}  // namespace orrery
