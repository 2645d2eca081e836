// Event-driven run of a step: the heap level, and the frame in which the SimGrid levels run.

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <variant>

#include "sim/cost/corrections.h"
#include "sim/des/agenda.h"
#include "sim/des/flows.h"
#include "sim/des/levels.h"
#include "sim/des/network_simgrid.h"
#include "sim/des/program.h"
#include "sim/des/sharing.h"
#include "sim/plan/sides.h"

namespace orrery::des {
namespace {

class Run final : public SimGridNetwork::Client {
 public:
  Run(const Step& step, const SimulateOptions& options, const RankSet& set, SimGridNetwork* network,
      SharingMode mode);

  Timeline run();

  // SimGridNetwork::Client
  [[nodiscard]] Seconds next_event() const override { return Seconds(agenda_.next_time()); }
  void handle_events_until(Seconds now) override {
    while (agenda_.next_time() <= now.value()) handle(agenda_.pop());
  }
  void on_progress(int activity, Seconds now) override {
    if (sharing_.on_progress(activity) && sharing_.has_ended(activity, now.value())) {
      end(activity, now.value());
    }
  }

 private:
  struct TaskState {
    double ready = 0;
    std::int32_t num_waits = 0;
  };
  struct Rank {
    int rank = 0;
    const Program* program = nullptr;
    std::size_t first_state = 0;  // of its tasks in states_
    double factor = 1;            // slowdown
    std::int32_t next_issue = 0;
  };
  struct TaskRef {
    std::int32_t rank_index = 0;
    std::int32_t task = 0;
  };
  // One copy of a collective.
  struct Meeting {
    std::vector<TaskRef> present;
    double factor = 1;
  };
  // What an activity does; `meeting` >= 0 for a collective.
  struct Owner {
    TaskRef task;
    std::int64_t meeting = -1;
    double start = 0;
  };

  const Op& op_of(const Task& task) const { return plan_.ops()[static_cast<std::size_t>(task.op)]; }
  const Task& task_of(TaskRef ref) const {
    return ranks_[static_cast<std::size_t>(ref.rank_index)]
        .program->tasks[static_cast<std::size_t>(ref.task)];
  }
  void issue(std::int32_t rank_index, double now);
  void resolve(TaskRef ref, double time, double now);
  void begin(TaskRef ref, double now);
  void arrive(TaskRef ref, double now);
  void own(std::int32_t activity, Owner owner);
  void handle(const Event& event);
  void end(std::int32_t activity, double now);
  void end_task(TaskRef ref, double start, double now);
  void record_links(const Op& op, const FlowSet& flows, double start, double end);
  const FlowSet& flows_for(const Op& op);
  void finish_timeline();

  const Step& step_;
  const SimulateOptions& options_;
  const RankSet& set_;
  const Plan& plan_;
  std::array<double, kLaunchedKinds> launch_{};  // by Launched
  double node_gap_ = 0;
  double hop_ = 0;
  Agenda agenda_;
  SimGridNetwork* network_;
  Sharing sharing_;
  std::vector<Program> programs_;
  std::vector<Rank> ranks_;
  std::vector<TaskState> states_;
  std::vector<std::int64_t> first_meeting_;  // by slot
  std::vector<Meeting> meetings_;
  std::vector<Owner> owners_;  // by activity
  std::map<std::tuple<GroupId, bool, bool, int>, FlowSet> flows_;
  std::size_t num_done_ = 0;
  Timeline timeline_;
};

Run::Run(const Step& step, const SimulateOptions& options, const RankSet& set,
         SimGridNetwork* network, SharingMode mode)
    : step_(step),
      options_(options),
      set_(set),
      plan_(*step.priced->plan),
      launch_(launch_times(step.launch_mode, step.host)),
      node_gap_(step.launch_mode == LaunchMode::kGraph ? step.host.graph_node.value() : 0),
      hop_(hop_time(step.launch_mode, step.host).value()),
      network_(network),
      sharing_(*step.machine, options, agenda_, network, mode) {
  programs_.reserve(set.lists.size());
  for (const auto& list : set.lists) programs_.push_back(make_program(plan_, list));
  for (std::size_t i = 0; i < set.ranks.size(); ++i) {
    const Program& program = programs_[static_cast<std::size_t>(set.list_of[i])];
    const auto rank = static_cast<std::size_t>(set.ranks[i]);
    ranks_.push_back({.rank = set.ranks[i],
                      .program = &program,
                      .first_state = states_.size(),
                      .factor = options.rank_slowdown.empty() ? 1 : options.rank_slowdown[rank]});
    for (const Task& task : program.tasks) states_.push_back({.num_waits = task.num_waits});
  }
  // A slot's copies follow each other in meetings_.
  std::vector<std::int64_t> copies(set.arrivals.size(), 0);
  for (std::size_t id = 0; id < plan_.ops().size(); ++id) {
    const std::int32_t slot = set.slot_of_op[id];
    if (slot >= 0) {
      copies[static_cast<std::size_t>(slot)] = plan_.multiplicity(static_cast<OpId>(id));
    }
  }
  std::int64_t next = 0;
  for (const std::int64_t count : copies) {
    first_meeting_.push_back(next);
    next += count;
  }
  meetings_.resize(static_cast<std::size_t>(next));
  timeline_.spans.reserve(states_.size());
}

Timeline Run::run() {
  for (std::size_t i = 0; i < ranks_.size(); ++i) issue(static_cast<std::int32_t>(i), 0);
  for (;;) {
    if (network_ != nullptr && !network_->is_idle()) {
      network_->run(*this);
    } else if (!agenda_.empty()) {
      handle(agenda_.pop());
    } else {
      break;
    }
  }
  if (num_done_ != states_.size()) {
    throw std::logic_error("simulated ranks wait for each other in a circle");
  }
  finish_timeline();
  return std::move(timeline_);
}

// The host issues ops one after another until a host op keeps it; that op's end goes on.
void Run::issue(std::int32_t rank_index, double now) {
  double free_at = now;
  for (;;) {
    Rank& rank = ranks_[static_cast<std::size_t>(rank_index)];
    if (static_cast<std::size_t>(rank.next_issue) >= rank.program->tasks.size()) return;
    const TaskRef ref{rank_index, rank.next_issue++};
    const Task& task = task_of(ref);
    const bool is_host = task.is_host;
    free_at += launch_[static_cast<std::size_t>(task.launched)];
    resolve(ref, free_at, now);
    if (is_host) return;
  }
}

// One of the task's waits is over at `time`, which may lie ahead of `now`.
void Run::resolve(TaskRef ref, double time, double now) {
  const Rank& rank = ranks_[static_cast<std::size_t>(ref.rank_index)];
  TaskState& state = states_[rank.first_state + static_cast<std::size_t>(ref.task)];
  state.ready = std::max(state.ready, time);
  if (--state.num_waits > 0) return;
  if (state.ready > now) {
    agenda_.push(state.ready, EventKind::kStart, ref.rank_index, ref.task);
  } else {
    begin(ref, now);
  }
}

void Run::begin(TaskRef ref, double now) {
  const Task& task = task_of(ref);
  const Op& op = op_of(task);
  if (std::holds_alternative<CommOp>(op.body)) {
    arrive(ref, now);
    return;
  }
  const Rank& rank = ranks_[static_cast<std::size_t>(ref.rank_index)];
  const double time =
      step_.priced->times[static_cast<std::size_t>(task.op)].time.value() * rank.factor;
  own(task.is_host ? sharing_.start_host(now, time)
                   : sharing_.start_kernel(rank.rank, now, time,
                                           step_.demands.empty()
                                               ? GpuDemand{}
                                               : step_.demands[static_cast<std::size_t>(task.op)]),
      {.task = ref, .start = now});
}

void Run::arrive(TaskRef ref, double now) {
  const Task& task = task_of(ref);
  const Op& op = op_of(task);
  const auto slot = static_cast<std::size_t>(set_.slot_of_op[static_cast<std::size_t>(task.op)]);
  const std::int64_t index = first_meeting_[slot] + task.copy;
  Meeting& meeting = meetings_[static_cast<std::size_t>(index)];
  meeting.present.push_back(ref);
  meeting.factor =
      std::max(meeting.factor, ranks_[static_cast<std::size_t>(ref.rank_index)].factor);
  if (meeting.present.size() < static_cast<std::size_t>(set_.arrivals[slot])) return;
  const Estimate& price = step_.priced->times[static_cast<std::size_t>(task.op)];
  const double time = price.time.value() * meeting.factor;
  std::vector<int> gpus;
  gpus.reserve(meeting.present.size());
  for (const TaskRef present : meeting.present) {
    gpus.push_back(ranks_[static_cast<std::size_t>(present.rank_index)].rank);
  }
  static const FlowSet no_flows;
  const FlowSet& flows = network_ != nullptr ? flows_for(op) : no_flows;
  const Bytes bytes = bytes_per_flow(flows, std::get<CommOp>(op.body));
  own(sharing_.start_collective(flows, bytes, gpus, now, time, price.latency.value(),
                                engine_of(plan_, op)),
      {.task = ref, .meeting = index, .start = now});
}

void Run::own(std::int32_t activity, Owner owner) {
  if (static_cast<std::size_t>(activity) >= owners_.size()) {
    owners_.resize(static_cast<std::size_t>(activity) + 1);
  }
  owners_[static_cast<std::size_t>(activity)] = owner;
}

void Run::handle(const Event& event) {
  switch (event.kind) {
    case EventKind::kStart:
      begin({event.id, event.detail}, event.time);
      return;
    case EventKind::kFlows:
      if (sharing_.is_current(event.id, event.detail)) sharing_.start_flows(event.id, event.time);
      return;
    case EventKind::kEnd:
      if (sharing_.is_current(event.id, event.detail) && sharing_.has_ended(event.id, event.time)) {
        end(event.id, event.time);
      }
      return;
  }
}

void Run::end(std::int32_t activity, double now) {
  const Owner owner = owners_[static_cast<std::size_t>(activity)];
  sharing_.finish(activity, now);
  if (owner.meeting < 0) {
    end_task(owner.task, owner.start, now);
    return;
  }
  const std::vector<TaskRef> present =
      std::move(meetings_[static_cast<std::size_t>(owner.meeting)].present);
  if (options_.record_links) {
    const Op& op = op_of(task_of(owner.task));
    record_links(op, flows_for(op), owner.start, now);
  }
  for (const TaskRef ref : present) end_task(ref, owner.start, now);
}

void Run::end_task(TaskRef ref, double start, double now) {
  const Rank& rank = ranks_[static_cast<std::size_t>(ref.rank_index)];
  const Task& task = task_of(ref);
  const Op& op = op_of(task);
  const SpanKind kind = std::holds_alternative<KernelOp>(op.body) ? SpanKind::kKernel
                        : std::holds_alternative<CommOp>(op.body) ? SpanKind::kComm
                                                                  : SpanKind::kHost;
  timeline_.spans.push_back({.op = task.op,
                             .copy = task.copy,
                             .rank = rank.rank,
                             .stream = op.stream,
                             .kind = kind,
                             .basis = step_.priced->times[static_cast<std::size_t>(task.op)].basis,
                             .start = Seconds(start),
                             .end = Seconds(now)});
  ++num_done_;
  const Program& program = *rank.program;
  if (task.next_on_stream >= 0) {
    resolve({ref.rank_index, task.next_on_stream}, now + node_gap_, now);
  }
  const auto successors = std::span(program.successors)
                              .subspan(static_cast<std::size_t>(task.first_successor),
                                       static_cast<std::size_t>(task.num_successors));
  for (const std::int32_t next : successors) {
    const TaskRef successor{ref.rank_index, next};
    resolve(successor, task_of(successor).is_host ? now : now + hop_, now);
  }
  if (task.is_host) issue(ref.rank_index, now);
}

const FlowSet& Run::flows_for(const Op& op) {
  const CollectiveKind kind = std::get<CommOp>(op.body).kind;
  const std::optional<Sides> sides = sides_of(plan_, op);
  const std::tuple key(op.ranks, kind == CollectiveKind::kSendRecv,
                       kind == CollectiveKind::kBroadcast, sides ? sides->senders.front() : -1);
  auto found = flows_.find(key);
  if (found == flows_.end()) {
    FlowSet flows = sides ? flows_between(*step_.machine, *sides, set_.ranks)
                          : flows_of(*step_.machine, kind, plan_.ranks(op.ranks), set_.ranks);
    found = flows_.emplace(key, std::move(flows)).first;
  }
  return found->second;
}

void Run::record_links(const Op& op, const FlowSet& flows, double start, double end) {
  const Bytes bytes = bytes_per_flow(flows, std::get<CommOp>(op.body));
  const auto id = static_cast<OpId>(&op - plan_.ops().data());
  for (const auto& [link, num_flows] : flows.num_flows_on) {
    timeline_.link_spans.push_back({.link = link,
                                    .op = id,
                                    .bytes = bytes * num_flows,
                                    .start = Seconds(start),
                                    .end = Seconds(end)});
  }
}

// Only links that carried something get a row.
void Run::finish_timeline() {
  for (std::size_t i = 0; i < set_.ranks.size(); ++i) {
    if (set_.counts[i] != 1) {
      for (std::size_t j = 0; j < set_.ranks.size(); ++j) {
        timeline_.represented.emplace_back(set_.ranks[j], set_.counts[j]);
      }
      break;
    }
  }
  std::map<int, int> rows;
  for (const LinkSpan& span : timeline_.link_spans) rows.emplace(span.link, 0);
  for (auto& [link, row] : rows) {
    row = static_cast<int>(timeline_.links.size());
    timeline_.links.push_back(step_.machine->links[static_cast<std::size_t>(link)].name);
  }
  for (LinkSpan& span : timeline_.link_spans) span.link = rows.at(span.link);
}

}  // namespace

Timeline run_events(const Step& step, const SimulateOptions& options, const RankSet& ranks,
                    SharingMode sharing) {
  if (sharing == SharingMode::kNone) return Run(step, options, ranks, nullptr, sharing).run();
  Timeline timeline;
  with_simgrid(*step.machine, [&](SimGridNetwork& network) {
    timeline = Run(step, options, ranks, &network, sharing).run();
  });
  return timeline;
}

}  // namespace orrery::des
