#include "sim/des/program.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "kernels/kernel_spec.h"
#include "sim/des/chain.h"

namespace orrery::des {
namespace {

class Builder {
 public:
  explicit Builder(const Plan& plan)
      : plan_(plan), writer_(plan.tensors().size(), -1), latest_(plan.ops().size(), -1) {
    launched_.reserve(plan.ops().size());
    for (const Op& op : plan.ops()) launched_.push_back(launched_for(op));
  }

  Program run(std::span<const OpId> ops) && {
    const auto& repeats = plan_.repeats();
    std::size_t run = 0;
    for (std::size_t i = 0; i < ops.size();) {
      while (run < repeats.size() && repeats[run].last <= ops[i]) ++run;
      if (run == repeats.size() || ops[i] < repeats[run].first) {
        add(ops[i++], 0);
        continue;
      }
      std::size_t end = i;
      while (end < ops.size() && ops[end] < repeats[run].last) ++end;
      for (std::int64_t copy = 0; copy < repeats[run].count; ++copy) {
        for (std::size_t j = i; j < end; ++j) add(ops[j], static_cast<std::int32_t>(copy));
      }
      i = end;
    }
    sort_edges();
    return std::move(program_);
  }

 private:
  void add(OpId id, std::int32_t copy) {
    const Op& op = plan_.ops()[static_cast<std::size_t>(id)];
    const auto index = static_cast<std::int32_t>(program_.tasks.size());
    const auto* host = std::get_if<HostOp>(&op.body);
    program_.tasks.push_back({.op = id,
                              .copy = copy,
                              .is_host = host != nullptr,
                              .launched = launched_[static_cast<std::size_t>(id)]});
    waits_.clear();
    for (const TensorId tensor : op.reads) wait_for(writer_[static_cast<std::size_t>(tensor)]);
    for (const OpId after : op.after) {
      const std::int32_t other = latest_[static_cast<std::size_t>(after)];
      if (other < 0) {
        throw std::invalid_argument(
            "op '" + printed_name(op) + "' is after op '" +
            printed_name(plan_.ops()[static_cast<std::size_t>(after)]) +
            "', which is not on all of its ranks; between ranks use a communication op");
      }
      wait_for(other);
    }
    std::int32_t& last = last_on(op.stream);
    if (host == nullptr) {
      if (last >= 0) {
        program_.tasks[static_cast<std::size_t>(last)].next_on_stream = index;
        ++program_.tasks.back().num_waits;
      }
      last = index;
    } else if (host->kind == HostKind::kD2hSync) {
      wait_for(last);
    }
    for (const std::int32_t other : waits_) add_edge(other, index, op.stream);
    for (const TensorId tensor : op.writes) writer_[static_cast<std::size_t>(tensor)] = index;
    latest_[static_cast<std::size_t>(id)] = index;
  }

  void wait_for(std::int32_t task) {
    if (task >= 0 && std::ranges::find(waits_, task) == waits_.end()) waits_.push_back(task);
  }

  void add_edge(std::int32_t from, std::int32_t to, int stream) {
    const Task& source = program_.tasks[static_cast<std::size_t>(from)];
    Task& target = program_.tasks[static_cast<std::size_t>(to)];
    if (source.is_host) return;  // nothing is issued before an earlier host op has ended
    if (!target.is_host && plan_.ops()[static_cast<std::size_t>(source.op)].stream == stream) {
      return;  // stream order
    }
    edges_.emplace_back(from, to);
    ++target.num_waits;
  }

  std::int32_t& last_on(int stream) {
    for (auto& [number, last] : last_on_stream_) {
      if (number == stream) return last;
    }
    return last_on_stream_.emplace_back(stream, -1).second;
  }

  void sort_edges() {
    for (const auto& [from, to] : edges_) {
      ++program_.tasks[static_cast<std::size_t>(from)].num_successors;
    }
    std::int32_t next = 0;
    for (Task& task : program_.tasks) {
      task.first_successor = next;
      next += std::exchange(task.num_successors, 0);
    }
    program_.successors.resize(static_cast<std::size_t>(next));
    for (const auto& [from, to] : edges_) {
      Task& task = program_.tasks[static_cast<std::size_t>(from)];
      const std::int32_t place = task.first_successor + task.num_successors++;
      program_.successors[static_cast<std::size_t>(place)] = to;
    }
  }

  const Plan& plan_;
  Program program_;
  std::vector<std::int32_t> writer_;  // by tensor: its latest writer
  std::vector<std::int32_t> latest_;  // by op: its latest copy
  std::vector<Launched> launched_;    // by op
  std::vector<std::pair<int, std::int32_t>> last_on_stream_;
  std::vector<std::int32_t> waits_;
  std::vector<std::pair<std::int32_t, std::int32_t>> edges_;
};

}  // namespace

Program make_program(const Plan& plan, std::span<const OpId> ops) { return Builder(plan).run(ops); }

}  // namespace orrery::des
