// Max-plus arithmetic over chains. A chain's state is (G, H): when its stream has ended and when
// its host is free. With gap g (graph mode, else 0) and launch time e (eager mode, else 0;
// by what is launched):
//
//   GPU step of time t     H += e;  G = max(G + g, H) + t        (first one: G = -inf)
//   host step              H += t
//   host step that waits   H = max(H, G) + t
//
// Each is linear over (max, +), so a repeat of n copies is the n-th power of a 2x2 matrix, taken by
// squaring. Chains that meet in collectives are walked copy by copy instead.

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "sim/cost/corrections.h"
#include "sim/des/levels.h"

namespace orrery {
namespace des {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

struct Gaps {
  double node = 0;                              // g
  std::array<double, kLaunchedKinds> launch{};  // e, by Launched
};

Gaps gaps_of(LaunchMode mode, const HostCosts& host) {
  return {.node = mode == LaunchMode::kGraph ? host.graph_node.value() : 0,
          .launch = launch_times(mode, host)};
}

struct State {
  double gpu = kNever;  // G
  double host = 0;      // H
};

double ready_time(State& state, const Gaps& gaps, const ChainStep& step) {
  state.host += gaps.launch[static_cast<std::size_t>(step.launched)];
  return std::max(state.gpu + gaps.node, state.host);
}

// Returns when the step starts.
double advance(State& state, const ChainStep& step, const Gaps& gaps, double factor) {
  const double time = step.time.value() * factor;
  double start = 0;
  if (step.kind == ChainStep::Kind::kGpu || step.kind == ChainStep::Kind::kRendezvous) {
    start = ready_time(state, gaps, step);
    state.gpu = start + time;
  } else {
    start = step.kind == ChainStep::Kind::kHostSync ? std::max(state.host, state.gpu) : state.host;
    state.host = start + time;
  }
  return start;
}

// gpu' = max(m[0][0] + gpu, m[0][1] + host), host' likewise.
using Matrix = std::array<std::array<double, 2>, 2>;

Matrix product(const Matrix& after, const Matrix& before) {
  Matrix result{};
  for (std::size_t i = 0; i < 2; ++i) {
    for (std::size_t j = 0; j < 2; ++j) {
      result[i][j] = std::max(after[i][0] + before[0][j], after[i][1] + before[1][j]);
    }
  }
  return result;
}

State advance_by(const Matrix& matrix, const State& state) {
  return {.gpu = std::max(matrix[0][0] + state.gpu, matrix[0][1] + state.host),
          .host = std::max(matrix[1][0] + state.gpu, matrix[1][1] + state.host)};
}

void run_copy(State& state, const Chain& chain, const ChainSection& section, const Gaps& gaps) {
  for (std::int32_t i = section.first; i < section.last; ++i) {
    advance(state, chain.steps[static_cast<std::size_t>(i)], gaps, 1.0);
  }
}

Matrix matrix_of(const Chain& chain, const ChainSection& section, const Gaps& gaps) {
  State from_gpu{.gpu = 0, .host = kNever};
  State from_host{.gpu = kNever, .host = 0};
  run_copy(from_gpu, chain, section, gaps);
  run_copy(from_host, chain, section, gaps);
  return {{{from_gpu.gpu, from_host.gpu}, {from_gpu.host, from_host.host}}};
}

void run_section(State& state, const Chain& chain, const ChainSection& section, const Gaps& gaps) {
  if (section.has_gpu_only && gaps.launch[static_cast<std::size_t>(Launched::kRows)] == 0) {
    // The host never holds back a step after the first: count * n steps end to end.
    const double steps = static_cast<double>(section.count) * (section.last - section.first);
    state.gpu = std::max(state.gpu + gaps.node, state.host) +
                section.time.value() * static_cast<double>(section.count) + gaps.node * (steps - 1);
    return;
  }
  if (section.count == 1) {
    run_copy(state, chain, section, gaps);
    return;
  }
  Matrix power = matrix_of(chain, section, gaps);
  for (std::int64_t count = section.count; count > 0; count /= 2) {
    if (count % 2 == 1) state = advance_by(power, state);
    power = product(power, power);
  }
}

bool has_rendezvous(const std::vector<Chain>& chains) {
  return std::ranges::any_of(chains, [](const Chain& chain) {
    return std::ranges::any_of(chain.sections, [&](const ChainSection& section) {
      if (section.has_gpu_only) return false;
      return std::any_of(
          chain.steps.begin() + section.first, chain.steps.begin() + section.last,
          [](const ChainStep& step) { return step.kind == ChainStep::Kind::kRendezvous; });
    });
  });
}

// Steps every chain until it must meet others, and lets a meeting go when all are there.
class Walk {
 public:
  Walk(const std::vector<Chain>& chains, std::vector<double> factors, Gaps gaps)
      : chains_(chains), factors_(std::move(factors)), gaps_(gaps), cursors_(chains.size()) {
    if (!chains.empty()) meetings_.resize(chains.front().num_participants.size());
  }

  // `visit(chain index, step, copy, start, end)` for each step.
  template <typename Visit>
  Seconds run(const Visit& visit) {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t i = 0; i < chains_.size(); ++i) moved = step_chain(i, visit) || moved;
    }
    double end = 0;
    for (std::size_t i = 0; i < chains_.size(); ++i) {
      if (cursors_[i].section < chains_[i].sections.size()) {
        throw std::logic_error("chains wait for each other in a circle");
      }
      end = std::max({end, cursors_[i].state.gpu, cursors_[i].state.host});
    }
    return Seconds(end);
  }

 private:
  struct Cursor {
    State state;
    std::size_t section = 0;
    std::int64_t copy = 0;
    std::int32_t step = -1;  // -1: at the section's first
    bool is_waiting = false;
  };
  struct Meeting {
    std::vector<std::size_t> present;
    double ready = kNever;
    double factor = 1;
  };

  void next(Cursor& cursor, const Chain& chain) {
    const ChainSection& section = chain.sections[cursor.section];
    if (++cursor.step < section.last) return;
    cursor.step = -1;
    if (++cursor.copy < section.count) return;
    cursor.copy = 0;
    ++cursor.section;
  }

  template <typename Visit>
  bool step_chain(std::size_t i, const Visit& visit) {
    Cursor& cursor = cursors_[i];
    const Chain& chain = chains_[i];
    bool moved = false;
    while (!cursor.is_waiting && cursor.section < chain.sections.size()) {
      if (cursor.step < 0) cursor.step = chain.sections[cursor.section].first;
      const ChainStep& step = chain.steps[static_cast<std::size_t>(cursor.step)];
      moved = true;
      if (step.kind == ChainStep::Kind::kRendezvous) {
        meet(i, step, visit);
        continue;
      }
      const double start = advance(cursor.state, step, gaps_, factors_[i]);
      visit(i, step, cursor.copy, start, start + step.time.value() * factors_[i]);
      next(cursor, chain);
    }
    return moved;
  }

  template <typename Visit>
  void meet(std::size_t i, const ChainStep& step, const Visit& visit) {
    Meeting& meeting = meetings_[static_cast<std::size_t>(step.meeting)];
    meeting.present.push_back(i);
    meeting.ready = std::max(meeting.ready, ready_time(cursors_[i].state, gaps_, step));
    meeting.factor = std::max(meeting.factor, factors_[i]);
    cursors_[i].is_waiting = true;
    const auto expected = static_cast<std::size_t>(
        chains_[i].num_participants[static_cast<std::size_t>(step.meeting)]);
    if (meeting.present.size() < expected) return;
    const double end = meeting.ready + step.time.value() * meeting.factor;
    for (const std::size_t other : meeting.present) {
      Cursor& cursor = cursors_[other];
      const ChainStep& own = chains_[other].steps[static_cast<std::size_t>(cursor.step)];
      visit(other, own, cursor.copy, meeting.ready, end);
      cursor.state.gpu = end;
      cursor.is_waiting = false;
      next(cursor, chains_[other]);
    }
    meeting = {};
  }

  const std::vector<Chain>& chains_;
  std::vector<double> factors_;
  Gaps gaps_;
  std::vector<Cursor> cursors_;
  std::vector<Meeting> meetings_;
};

void require_chain(bool is_chain, const std::string& why_not) {
  if (is_chain) return;
  throw std::invalid_argument("step level closed_form needs a plan that is one chain: " + why_not +
                              "; use level heap, representative or all_ranks");
}

// When a chain that meets no other has ended.
Seconds end_of(const Chain& chain, const Gaps& gaps) {
  State state;
  for (const ChainSection& section : chain.sections) run_section(state, chain, section, gaps);
  return Seconds(std::max({0.0, state.gpu, state.host}));
}

}  // namespace

Seconds closed_form(const Chain& chain, LaunchMode launch_mode, const HostCosts& host) {
  return end_of(chain, gaps_of(launch_mode, host));
}

Seconds closed_form(const PricedPlan& priced, LaunchMode launch_mode, const HostCosts& host) {
  require_chain(priced.is_chain, priced.why_not_chain);
  const Gaps gaps = gaps_of(launch_mode, host);
  if (priced.chains.size() > 1 && has_rendezvous(priced.chains)) {
    std::vector<double> factors(priced.chains.size(), 1.0);
    return Walk(priced.chains, std::move(factors), gaps).run([](auto&&...) {});
  }
  Seconds end;
  for (const Chain& chain : priced.chains) end = std::max(end, end_of(chain, gaps));
  return end;
}

Timeline closed_form_timeline(const Step& step, const SimulateOptions& options) {
  const Plan& plan = *step.priced->plan;
  require_chain(step.priced->is_chain, step.priced->why_not_chain);
  std::vector<Chain> slowed;
  if (!options.rank_slowdown.empty()) {
    std::string why_not;
    slowed = make_chains(plan, step.priced->times, options.rank_slowdown, why_not);
  }
  const std::vector<Chain>& chains = slowed.empty() ? step.priced->chains : slowed;

  Timeline timeline;
  std::vector<double> factors;
  for (const Chain& chain : chains) {
    timeline.represented.emplace_back(chain.rank, chain.num_ranks);
    factors.push_back(options.rank_slowdown.empty()
                          ? 1.0
                          : options.rank_slowdown[static_cast<std::size_t>(chain.rank)]);
  }
  Walk walk(chains, factors, gaps_of(step.launch_mode, step.host));
  walk.run([&](std::size_t chain, const ChainStep& own, std::int64_t copy, double start,
               double end) {
    const Op& op = plan.ops()[static_cast<std::size_t>(own.op)];
    const SpanKind kind = std::holds_alternative<KernelOp>(op.body) ? SpanKind::kKernel
                          : std::holds_alternative<CommOp>(op.body) ? SpanKind::kComm
                                                                    : SpanKind::kHost;
    timeline.spans.push_back({.op = own.op,
                              .copy = static_cast<std::int32_t>(copy),
                              .rank = chains[chain].rank,
                              .stream = op.stream,
                              .kind = kind,
                              .basis = step.priced->times[static_cast<std::size_t>(own.op)].basis,
                              .start = Seconds(start),
                              .end = Seconds(end)});
  });
  return timeline;
}

}  // namespace des

Seconds closed_form(const PricedPlan& priced, const CostModel& cost) {
  return des::closed_form(priced, cost.options().launch_mode, cost.options().host);
}

Seconds closed_form(const Chain& chain, const CostModel& cost) {
  return des::closed_form(chain, cost.options().launch_mode, cost.options().host);
}

}  // namespace orrery
