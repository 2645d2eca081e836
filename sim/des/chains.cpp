#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "kernels/kernel_spec.h"
#include "sim/des/levels.h"

namespace orrery::des {
namespace {

// Index of the Repeat each op is in, -1 for none.
std::vector<std::int32_t> runs_of(const Plan& plan) {
  std::vector<std::int32_t> runs(plan.ops().size(), -1);
  for (std::size_t run = 0; run < plan.repeats().size(); ++run) {
    for (OpId id = plan.repeats()[run].first; id < plan.repeats()[run].last; ++id) {
      runs[static_cast<std::size_t>(id)] = static_cast<std::int32_t>(run);
    }
  }
  return runs;
}

// Turns one rank's op list into a Chain, or says why it is none.
class ChainBuilder {
 public:
  ChainBuilder(const Plan& plan, std::span<const Estimate> times, const RankSet& set,
               std::span<const std::int32_t> run_of)
      : plan_(plan), times_(times), set_(set), run_of_(run_of) {}

  // Empty on success.
  std::string build(const std::vector<OpId>& ops, Chain& chain) {
    writer_.assign(plan_.tensors().size(), -1);
    last_gpu_ = -1;
    stream_ = -1;
    for (const OpId id : ops) {
      const std::string problem = add(ops, id, chain);
      if (!problem.empty()) return problem;
    }
    return {};
  }

 private:
  std::string add(const std::vector<OpId>& ops, OpId id, Chain& chain) {
    const Op& op = plan_.ops()[static_cast<std::size_t>(id)];
    const auto at = static_cast<std::size_t>(id);
    ChainStep step{.time = times_[at].time,
                   .limited = times_[at].limited,
                   .arithmetic = times_[at].arithmetic,
                   .energy = times_[at].energy,
                   .op = id};
    for (const OpId after : op.after) {
      if (!std::ranges::binary_search(ops, after)) {
        return quoted(op) + " is after an op of another rank";
      }
    }
    if (std::holds_alternative<HostOp>(op.body)) {
      bool waits = false;
      const std::string problem = host_waits(ops, id, waits);
      if (!problem.empty()) return problem;
      step.kind = waits ? ChainStep::Kind::kHostSync : ChainStep::Kind::kHost;
    } else {
      if (stream_ >= 0 && op.stream != stream_) {
        return quoted(op) + " runs on stream " + std::to_string(op.stream) +
               " and earlier ones on stream " + std::to_string(stream_);
      }
      stream_ = op.stream;
      last_gpu_ = id;
      step.launched = launched_for(op);
      const std::int32_t slot = set_.slot_of_op[at];
      if (std::holds_alternative<CommOp>(op.body) &&
          set_.arrivals[static_cast<std::size_t>(slot)] > 1) {
        step.kind = ChainStep::Kind::kRendezvous;
        step.meeting = slot;
      }
    }
    for (const TensorId tensor : op.writes) writer_[static_cast<std::size_t>(tensor)] = id;
    append(chain, step, run_of_[at]);
    return {};
  }

  // A host op may wait for the GPU op just before it, or for none.
  std::string host_waits(const std::vector<OpId>& ops, OpId id, bool& waits) const {
    const Op& op = plan_.ops()[static_cast<std::size_t>(id)];
    const std::int32_t run = run_of_[static_cast<std::size_t>(id)];
    waits = std::get<HostOp>(op.body).kind == HostKind::kD2hSync &&
            (stream_ < 0 || op.stream == stream_);
    std::vector<OpId> waited = op.after;
    for (const TensorId tensor : op.reads) {
      const OpId writer = writer_[static_cast<std::size_t>(tensor)];
      if (writer >= 0) waited.push_back(writer);
      const bool is_in_run = writer >= 0 && run_of_[static_cast<std::size_t>(writer)] == run;
      if (run >= 0 && !is_in_run && is_written_in_run(ops, tensor, run)) {
        return quoted(op) + " on the host reads what the copy before it wrote";
      }
    }
    for (const OpId other : waited) {
      if (std::holds_alternative<HostOp>(plan_.ops()[static_cast<std::size_t>(other)].body)) {
        continue;  // host order implies it
      }
      if (other != last_gpu_ || (run >= 0 && run_of_[static_cast<std::size_t>(other)] != run)) {
        return quoted(op) + " on the host waits for an op that is not the one just before it";
      }
      waits = true;
    }
    return {};
  }

  bool is_written_in_run(const std::vector<OpId>& ops, TensorId tensor, std::int32_t run) const {
    return std::ranges::any_of(ops, [&](OpId id) {
      return run_of_[static_cast<std::size_t>(id)] == run &&
             std::ranges::find(plan_.ops()[static_cast<std::size_t>(id)].writes, tensor,
                               &TensorView::tensor) !=
                 plan_.ops()[static_cast<std::size_t>(id)].writes.end();
    });
  }

  void append(Chain& chain, const ChainStep& step, std::int32_t run) {
    const auto at = static_cast<std::int32_t>(chain.steps.size());
    if (chain.sections.empty() || run != last_run_) {
      const std::int64_t count = run < 0 ? 1 : plan_.repeats()[static_cast<std::size_t>(run)].count;
      chain.sections.push_back({.first = at, .last = at, .count = count, .has_gpu_only = true});
      last_run_ = run;
    }
    ChainSection& section = chain.sections.back();
    section.last = at + 1;
    section.time += step.time;
    section.has_gpu_only = section.has_gpu_only && step.kind == ChainStep::Kind::kGpu;
    chain.steps.push_back(step);
  }

  const Plan& plan_;
  std::span<const Estimate> times_;
  const RankSet& set_;
  std::span<const std::int32_t> run_of_;
  std::vector<OpId> writer_;
  OpId last_gpu_ = -1;
  int stream_ = -1;
  std::int32_t last_run_ = -1;
};

}  // namespace

std::vector<Chain> make_chains(const Plan& plan, std::span<const Estimate> times,
                               std::span<const double> slowdown, std::string& why_not) {
  std::vector<Seconds> seconds;
  seconds.reserve(times.size());
  for (const Estimate& estimate : times) seconds.push_back(estimate.time);
  const RankSet set = representatives(plan, seconds, slowdown);
  const std::vector<std::int32_t> run_of = runs_of(plan);
  ChainBuilder builder(plan, times, set, run_of);
  std::vector<Chain> chains;
  for (std::size_t i = 0; i < set.ranks.size(); ++i) {
    Chain chain{.rank = set.ranks[i], .num_ranks = set.counts[i]};
    chain.num_participants = set.arrivals;
    why_not = builder.build(set.lists[static_cast<std::size_t>(set.list_of[i])], chain);
    if (!why_not.empty()) return {};
    chains.push_back(std::move(chain));
  }
  return chains;
}

}  // namespace orrery::des
