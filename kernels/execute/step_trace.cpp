#include "kernels/execute/step_trace.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace orrery {
namespace {

using Records = std::vector<const KernelRecord*>;

// A task that enqueued something, and what.
struct TaskRecords {
  Task task;
  Records records;
};

[[noreturn]] void refuse(const RankTrace& trace, const std::string& what, std::size_t found,
                         std::size_t expected) {
  throw std::runtime_error("rank " + std::to_string(trace.rank) + ": " + what +
                           std::to_string(found) + " kernels and copies were recorded, " +
                           std::to_string(expected) + " were enqueued");
}

// A task may have begun while the one before it on its stream ran.
void start_after_predecessors(std::vector<Span>& spans) {
  std::map<int, Seconds> ends;  // by stream
  for (Span& span : spans) {
    const auto [end, is_first] = ends.try_emplace(span.stream, span.end);
    if (is_first) continue;
    span.start = std::min(std::max(span.start, end->second), span.end);
    end->second = std::max(end->second, span.end);
  }
}

const Op& op_of(const Plan& plan, const Task& task) {
  return plan.ops()[static_cast<std::size_t>(task.op)];
}

// Gives the records of `stream` (-1: of all streams), in order, to the tasks there.
void add_tasks(const Plan& plan, const RankTrace& trace, int stream,
               std::span<const KernelRecord* const> records, std::vector<TaskRecords>& tasks) {
  std::size_t next = 0;
  for (std::size_t i = 0; i < trace.tasks.size(); ++i) {
    const auto count = static_cast<std::size_t>(trace.num_nodes[i]);
    if ((stream >= 0 && op_of(plan, trace.tasks[i]).stream != stream) || count == 0) continue;
    const auto own = records.subspan(next, count);
    next += count;
    tasks.push_back({.task = trace.tasks[i], .records = {own.begin(), own.end()}});
  }
}

std::vector<TaskRecords> graph_tasks(const Plan& plan, const RankTrace& trace,
                                     const Records& records) {
  Records nodes;
  std::ranges::copy_if(records, std::back_inserter(nodes),
                       [](const KernelRecord* record) { return record->graph_node != 0; });
  std::ranges::stable_sort(nodes, {},
                           [](const KernelRecord* record) { return record->graph_node; });
  const auto before = static_cast<std::size_t>(trace.num_before);
  const auto expected = static_cast<std::size_t>(
      std::accumulate(trace.num_nodes.begin(), trace.num_nodes.end(), trace.num_before));
  if (nodes.size() != expected) refuse(trace, "", nodes.size(), expected);
  std::vector<TaskRecords> tasks;
  add_tasks(plan, trace, -1, std::span(nodes).subspan(before), tasks);
  return tasks;
}

// Streams of the plan with the number of records that each has.
std::vector<std::pair<int, std::size_t>> expected_streams(const Plan& plan,
                                                          const RankTrace& trace) {
  std::vector<std::pair<int, std::size_t>> streams{{0, 0}};
  for (std::size_t i = 0; i < trace.tasks.size(); ++i) {
    const int stream = op_of(plan, trace.tasks[i]).stream;
    auto found = std::ranges::find(streams, stream, &std::pair<int, std::size_t>::first);
    if (found == streams.end()) found = streams.insert(streams.end(), {stream, 0});
    found->second += static_cast<std::size_t>(trace.num_nodes[i]);
  }
  return streams;
}

std::vector<TaskRecords> eager_tasks(const Plan& plan, const RankTrace& trace,
                                     const Records& records) {
  std::vector<TaskRecords> tasks;
  if (records.empty()) refuse(trace, "", 0, 1);
  std::vector<std::pair<std::uint32_t, Records>> recorded;  // by who begins first
  for (const KernelRecord* record : records) {
    auto found =
        std::ranges::find(recorded, record->stream, [](const auto& entry) { return entry.first; });
    if (found == recorded.end()) found = recorded.insert(recorded.end(), {record->stream, {}});
    found->second.push_back(record);
  }
  // Stream 0 begins with the copy of inputs and ends with those of results.
  Records& main = recorded.front().second;
  const auto before = static_cast<std::size_t>(trace.num_before) + 1;
  const auto after = static_cast<std::size_t>(trace.num_after);
  if (main.size() < before + after) refuse(trace, "on stream 0 ", main.size(), before + after);
  main = Records(main.begin() + static_cast<std::ptrdiff_t>(before),
                 main.end() - static_cast<std::ptrdiff_t>(after));
  for (const auto& [stream, count] : expected_streams(plan, trace)) {
    const auto own = std::ranges::find_if(recorded, [&](const auto& entry) {
      return (stream == 0) == (&entry == &recorded.front()) && entry.second.size() == count;
    });
    if (own == recorded.end()) {
      if (stream != 0 && count == 0) continue;
      refuse(trace, "on stream " + std::to_string(stream) + " ",
             stream == 0 ? recorded.front().second.size() : 0, count);
    }
    add_tasks(plan, trace, stream, own->second, tasks);
    if (stream != 0) recorded.erase(own);
  }
  return tasks;
}

std::vector<TaskRecords> tasks_of(const Plan& plan, const RankTrace& trace,
                                  std::span<const KernelRecord> records) {
  Records own;
  for (const KernelRecord& record : records) {
    if (record.device == trace.device) own.push_back(&record);
  }
  return trace.mode == LaunchMode::kGraph ? graph_tasks(plan, trace, own)
                                          : eager_tasks(plan, trace, own);
}

Span span_of(const Plan& plan, int rank, const TaskRecords& of) {
  const Op& op = op_of(plan, of.task);
  const auto& [task, records] = of;
  return {.op = task.op,
          .copy = task.copy,
          .rank = rank,
          .stream = op.stream,
          .kind = std::holds_alternative<CommOp>(op.body) ? SpanKind::kComm : SpanKind::kKernel,
          .basis = Basis::kMeasured,
          .start = (*std::ranges::min_element(records, {}, &KernelRecord::start))->start,
          .end = (*std::ranges::max_element(records, {}, &KernelRecord::end))->end};
}

// CUPTI gives names as the linker has them.
std::string source_name(const std::string& name) {
  if (!name.starts_with("_Z")) return name;
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  return text ? text.get() : name;
}

}  // namespace

std::vector<Span> trace_spans(const Plan& plan, const RankTrace& trace,
                              std::span<const KernelRecord> records) {
  std::vector<Span> spans;
  for (const TaskRecords& of : tasks_of(plan, trace, records)) {
    spans.push_back(span_of(plan, trace.rank, of));
  }
  start_after_predecessors(spans);
  return spans;
}

std::vector<LaunchedKernel> launched_kernels(const Plan& plan, const RankTrace& trace,
                                             std::span<const KernelRecord> records) {
  std::map<std::pair<OpId, std::string>, LaunchedKernel> kernels;
  std::map<int, Seconds> reached;  // by stream
  for (const TaskRecords& of : tasks_of(plan, trace, records)) {
    const int stream = op_of(plan, of.task).stream;
    for (const KernelRecord* record : of.records) {
      const Seconds before = reached.try_emplace(stream, record->start).first->second;
      const Seconds end = std::max(before, record->end);
      LaunchedKernel& kernel = kernels[{of.task.op, record->name}];
      ++kernel.launches;
      kernel.stream = stream;
      kernel.time += end - std::max(before, record->start);
      reached[stream] = end;
    }
  }
  std::vector<LaunchedKernel> found;
  for (auto& [key, kernel] : kernels) {
    kernel.op = key.first;
    kernel.rank = trace.rank;
    kernel.kernel = source_name(key.second);
    found.push_back(std::move(kernel));
  }
  return found;
}

void start_collectives_together(std::vector<Span>& spans) {
  std::map<std::pair<OpId, std::int32_t>, Seconds> starts;
  for (const Span& span : spans) {
    if (span.kind != SpanKind::kComm) continue;
    Seconds& start = starts.try_emplace({span.op, span.copy}, span.start).first->second;
    start = std::max(start, span.start);
  }
  for (Span& span : spans) {
    if (span.kind != SpanKind::kComm) continue;
    span.start = std::min(starts.at({span.op, span.copy}), span.end);
  }
}

}  // namespace orrery
