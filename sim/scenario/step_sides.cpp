#include "sim/scenario/step_sides.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "sim/plan/sides.h"

namespace orrery {

namespace {

// Exchanges between the sides of a step, in the order of its plan.
class Exchanges {
 public:
  explicit Exchanges(const Plan& plan) : plan_(plan) {
    for (std::size_t id = 0; id < plan.ops().size(); ++id) {
      const Op& op = plan.ops()[id];
      if (sides_of(plan, op)) last_[op.micro_batch] = static_cast<OpId>(id);
    }
  }

  [[nodiscard]] bool contain(const Span& span) const {
    return sides_of(plan_, op_of(span)).has_value();
  }
  // Whether the span belongs to no layer, since its micro-batch is back for good.
  [[nodiscard]] bool are_over(const Span& span) const {
    const auto last = last_.find(op_of(span).micro_batch);
    return last != last_.end() && span.op > last->second;
  }
  [[nodiscard]] bool are_sent_by(int rank, const Span& span) const {
    const std::optional<Sides> sides = sides_of(plan_, op_of(span));
    return sides && std::ranges::find(sides->senders, rank) != sides->senders.end();
  }

 private:
  [[nodiscard]] const Op& op_of(const Span& span) const {
    return plan_.ops()[static_cast<std::size_t>(span.op)];
  }

  const Plan& plan_;
  std::map<std::int16_t, OpId> last_;  // by micro-batch
};

// The timeline with rows on the way once the last rank is there; others wait for it before.
Timeline moving(Timeline timeline, const Exchanges& exchanges) {
  std::map<std::pair<OpId, std::int32_t>, Seconds> last_start;
  for (const Span& span : timeline.spans) {
    Seconds& start = last_start[{span.op, span.copy}];
    start = std::max(start, span.start);
  }
  for (Span& span : timeline.spans) {
    if (exchanges.contain(span)) span.start = last_start.at({span.op, span.copy});
  }
  std::ranges::sort(timeline.spans, {}, &Span::start);
  return timeline;
}

// In which `rank` computes or communicates.
Seconds covered(const Timeline& timeline, int rank) {
  return busy(timeline, rank, SpanKind::kKernel) + exposed_communication(timeline, rank);
}

}  // namespace

std::vector<StepSide> step_sides(const Plan& plan, const Timeline& timeline, const Mesh& mesh) {
  if (mesh.ffn_instances == 0) return {};
  const Exchanges exchanges(plan);
  const Timeline on_the_way = moving(timeline, exchanges);
  Timeline within = timeline;
  std::erase_if(within.spans, [&](const Span& span) { return exchanges.contain(span); });
  Timeline of_layers = within;
  std::erase_if(of_layers.spans, [&](const Span& span) { return exchanges.are_over(span); });
  const Seconds step = makespan(timeline);
  const int num_ffn = num_ffn_ranks(mesh);
  const int num_attention = num_ranks(mesh) - num_ffn;
  std::vector<StepSide> sides;
  const auto add = [&](std::string_view name, int rank, int count) {
    const Seconds works = covered(within, rank);
    StepSide side{.side = std::string(name),
                  .num_ranks = count,
                  .bubble = step - works,
                  .exposed = std::max(Seconds(0), covered(on_the_way, rank) - works),
                  .share = step > Seconds(0) ? (step - works) / step : 0,
                  .turn = covered(of_layers, rank)};
    std::int64_t num_sent = 0;  // once of each micro-batch in each layer
    for (const Span& span : on_the_way.spans) {
      if (span.rank != rank || !exchanges.are_sent_by(rank, span)) continue;
      ++num_sent;
      side.way += span.end - span.start;
    }
    const double turns = static_cast<double>(std::max<std::int64_t>(num_sent, 1));
    side.turn = side.turn / turns;
    side.way = side.way / turns;
    sides.push_back(side);
  };
  add("attention", 0, num_attention);
  add("ffn", num_attention, num_ffn);
  return sides;
}

}  // namespace orrery
