#include "sim/scenario/step_sides.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string_view>
#include <utility>

#include "sim/plan/sides.h"

namespace orrery {

std::vector<StepSide> step_sides(const Plan& plan, const Timeline& timeline, const Mesh& mesh) {
  if (mesh.ffn_instances == 0) return {};
  const auto is_exchange = [&](const Span& span) {
    return sides_of(plan, plan.ops()[static_cast<std::size_t>(span.op)]).has_value();
  };
  Timeline within = timeline;
  std::erase_if(within.spans, is_exchange);
  // Rows are on the way once the last rank is there; others wait for it before.
  Timeline moving = timeline;
  std::map<std::pair<OpId, std::int32_t>, Seconds> last_start;
  for (const Span& span : timeline.spans) {
    Seconds& start = last_start[{span.op, span.copy}];
    start = std::max(start, span.start);
  }
  for (Span& span : moving.spans) {
    if (is_exchange(span)) span.start = last_start.at({span.op, span.copy});
  }
  std::ranges::sort(moving.spans, {}, &Span::start);
  const auto covered = [](const Timeline& of, int rank) {
    return busy(of, rank, SpanKind::kKernel) + exposed_communication(of, rank);
  };
  const Seconds step = makespan(timeline);
  const int num_ffn = num_ffn_ranks(mesh);
  const int num_attention = num_ranks(mesh) - num_ffn;
  std::vector<StepSide> sides;
  const auto add = [&](std::string_view name, int rank, int count) {
    const Seconds works = covered(within, rank);
    sides.push_back({.side = std::string(name),
                     .num_ranks = count,
                     .bubble = step - works,
                     .exposed = std::max(Seconds(0), covered(moving, rank) - works),
                     .share = step > Seconds(0) ? (step - works) / step : 0});
  };
  add("attention", 0, num_attention);
  add("ffn", num_attention, num_ffn);
  return sides;
}

}  // namespace orrery
