// Pipeline parallelism (GPipe, arXiv 1811.06965): stages hold consecutive layers, micro-batches
// follow each other through them. Stage s of micro-batch m runs once it has received m and done m -
// 1:
//
//   stage 0   m0 m1 m2
//   stage 1      m0 m1 m2          (m + p - 1) steps for m micro-batches on p stages
//
// The data pass has cut rows to one micro-batch already. Transfers are on stream 1, so that a stage
// computes the next micro-batch while it sends.

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "sim/parallel/rewrite.h"

namespace orrery {
namespace {

constexpr int kTransferStream = 1;

// Ops [first, last) of the source, `count` times if they are of a run (else count is 0), of which
// `first_copy` are in segments before.
struct Segment {
  OpId first = 0;
  OpId last = 0;
  std::int64_t count = 0;
  std::int64_t first_copy = 0;
};
using Stage = std::vector<Segment>;

// Copies of runs are dealt out in order; ops outside of runs stay with what is before them, those
// before the first run are in the first stage.
std::vector<Stage> make_stages(const Plan& plan, int num_stages) {
  std::int64_t num_units = 0;
  for (const Repeat& repeat : plan.repeats()) num_units += repeat.count;
  if (num_units < num_stages) {
    throw std::invalid_argument("pp is " + std::to_string(num_stages) + ", expected at most " +
                                std::to_string(num_units) +
                                ", the layers (or groups of unlike "
                                "layers) of the plan");
  }
  const std::vector<std::int64_t> shares = stage_shares(num_units, num_stages);
  std::vector<Stage> stages(static_cast<std::size_t>(num_stages));
  std::size_t stage = 0;
  std::int64_t free = shares[0];
  OpId done = 0;
  const auto add_plain = [&](OpId end) {
    if (done < end) stages[stage].push_back({.first = done, .last = end, .count = 0});
  };
  for (const Repeat& repeat : plan.repeats()) {
    add_plain(repeat.first);
    done = repeat.last;
    for (std::int64_t left = repeat.count; left > 0;) {
      if (free == 0) free = shares[++stage];
      const std::int64_t count = std::min(left, free);
      stages[stage].push_back({.first = repeat.first,
                               .last = repeat.last,
                               .count = count,
                               .first_copy = repeat.count - left});
      left -= count;
      free -= count;
    }
  }
  add_plain(static_cast<OpId>(plan.ops().size()));
  return stages;
}

bool is_stored(TensorRole role) { return role == TensorRole::kWeight; }

class PipelinePass {
 public:
  PipelinePass(const Plan& plan, const Mesh& mesh)
      : source_(plan),
        num_micro_batches_(mesh.num_micro_batches),
        stage_ranks_(plan.num_ranks()),
        stages_(make_stages(plan, mesh.pp)),
        copies_(num_copies(plan)),
        last_copy_(plan.ops().size()) {
    for (const Split& split : plan.splits()) plan_.add_split(split);
    find_transfers();
    const auto num_tensors = plan.tensors().size();
    ids_.assign(stages_.size() * static_cast<std::size_t>(num_micro_batches_ + 1),
                std::vector<TensorId>(num_tensors, -1));
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      groups_.emplace_back();
      for (GroupId id = 0; id < plan.num_groups(); ++id) {
        std::vector<int> ranks;
        for (const int rank : plan.ranks(id)) ranks.push_back(first_rank(stage) + rank);
        groups_.back().push_back(plan_.add_group(std::move(ranks)));
      }
    }
  }

  Plan run() {
    for (int micro_batch = 0; micro_batch < num_micro_batches_; ++micro_batch) {
      for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
        if (stage > 0) transfer(stage, micro_batch);
        for (const Segment& segment : stages_[stage]) add_segment(segment, stage, micro_batch);
      }
    }
    return std::move(plan_);
  }

 private:
  [[nodiscard]] int first_rank(std::size_t stage) const {
    return static_cast<int>(stage) * stage_ranks_;
  }

  // `micro_batch` -1: of all.
  template <typename Owner>
  void set_place(Owner& owner, std::size_t stage, int micro_batch) const {
    owner.stage = static_cast<std::int16_t>(stage);
    if (num_micro_batches_ > 1) owner.micro_batch = static_cast<std::int16_t>(micro_batch);
  }

  // What each stage needs of the stages before: liveness over whole stages, from the back.
  void find_transfers() {
    const std::size_t num_tensors = source_.tensors().size();
    received_.assign(stages_.size(), std::vector<bool>(num_tensors));
    std::vector<bool> is_needed(num_tensors);
    for (std::size_t stage = stages_.size(); stage-- > 0;) {
      std::vector<bool> is_written(num_tensors);
      std::vector<bool> is_read_first(num_tensors);
      for (const Segment& segment : stages_[stage]) {
        for (OpId id = segment.first; id < segment.last; ++id) {
          const Op& op = source_.ops()[static_cast<std::size_t>(id)];
          for (const TensorId read : op.reads) {
            const auto i = static_cast<std::size_t>(read);
            if (!is_written[i]) is_read_first[i] = true;
          }
          for (const TensorId written : op.writes)
            is_written[static_cast<std::size_t>(written)] = true;
        }
      }
      for (std::size_t i = 0; i < num_tensors; ++i) {
        is_needed[i] = is_read_first[i] || (is_needed[i] && !is_written[i]);
      }
      received_[stage] = is_needed;
    }
    // Weights, states, and inputs that no op changes, are there from the start.
    std::vector<bool> is_ever_written(num_tensors);
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      for (std::size_t i = 0; i < num_tensors; ++i) {
        if (!is_ever_written[i] || is_cache(source_.tensors()[i].role)) received_[stage][i] = false;
      }
      for (const Segment& segment : stages_[stage]) {
        for (OpId id = segment.first; id < segment.last; ++id) {
          for (const TensorId written : source_.ops()[static_cast<std::size_t>(id)].writes) {
            is_ever_written[static_cast<std::size_t>(written)] = true;
          }
        }
      }
    }
  }

  // The tensor of the source as a stage and micro-batch have it; weights are the stage's. The
  // stages before have `first_copy` copies of the run that uses it.
  TensorId tensor(TensorId id, std::size_t stage, int micro_batch, std::int64_t first_copy = 0) {
    const Tensor& original = source_.tensors()[static_cast<std::size_t>(id)];
    const int owner = is_stored(original.role) ? -1 : micro_batch;
    const auto slot = stage * static_cast<std::size_t>(num_micro_batches_ + 1) +
                      static_cast<std::size_t>(owner + 1);
    TensorId& copy = ids_[slot][static_cast<std::size_t>(id)];
    if (copy >= 0) return copy;
    Tensor tensor = original;
    set_place(tensor, stage, owner);
    const bool is_kept = is_stored(original.role) || is_cache(original.role);
    if (is_kept && copies_[static_cast<std::size_t>(id)] > 1) {
      tensor.first_copy = static_cast<std::int32_t>(first_copy);
    }
    tensor.ranks = groups_[stage][static_cast<std::size_t>(original.ranks)];
    if (received_[stage][static_cast<std::size_t>(id)]) tensor.role = TensorRole::kActivation;
    copy = plan_.add_tensor(std::move(tensor));
    return copy;
  }

  // One send_recv per rank of a stage: each sends its copy to the rank in the same place.
  void transfer(std::size_t stage, int micro_batch) {
    TensorViews reads;
    TensorViews writes;
    Bytes bytes;
    for (std::size_t i = 0; i < source_.tensors().size(); ++i) {
      if (!received_[stage][i]) continue;
      const auto id = static_cast<TensorId>(i);
      reads.emplace_back(tensor(id, stage - 1, micro_batch));
      writes.emplace_back(tensor(id, stage, micro_batch));
      bytes += bytes_of(source_.tensors()[i]);
    }
    if (reads.empty()) return;
    const DType dtype = plan_.tensors()[static_cast<std::size_t>(reads.front().tensor)].dtype;
    for (int rank = 0; rank < stage_ranks_; ++rank) {
      const int receiver = first_rank(stage) + rank;
      Op op{.name = "recv.r" + std::to_string(receiver),
            .body =
                CommOp{.kind = CollectiveKind::kSendRecv, .dtype = dtype, .bytes_per_rank = bytes},
            .ranks = plan_.add_group({receiver - stage_ranks_, receiver}),
            .stream = kTransferStream,
            .reads = reads,
            .writes = writes,
            .after = {}};
      set_place(op, stage, micro_batch);
      plan_.add_op(std::move(op));
    }
  }

  void add_segment(const Segment& segment, std::size_t stage, int micro_batch) {
    const auto first = static_cast<OpId>(plan_.ops().size());
    for (OpId id = segment.first; id < segment.last; ++id) {
      Op op = source_.ops()[static_cast<std::size_t>(id)];
      set_place(op, stage, micro_batch);
      op.ranks = groups_[stage][static_cast<std::size_t>(op.ranks)];
      for (auto* views : {&op.reads, &op.writes}) {
        for (TensorView& view : *views) {
          view.tensor = tensor(view, stage, micro_batch, segment.first_copy);
        }
      }
      for (OpId& before : op.after) before = last_copy_[static_cast<std::size_t>(before)];
      last_copy_[static_cast<std::size_t>(id)] = plan_.add_op(std::move(op));
    }
    if (segment.count > 0) {
      plan_.add_repeat(
          {.first = first, .last = static_cast<OpId>(plan_.ops().size()), .count = segment.count});
    }
  }

  const Plan& source_;
  int num_micro_batches_;
  int stage_ranks_;
  std::vector<Stage> stages_;
  std::vector<std::vector<bool>> received_;   // by stage and tensor of the source
  std::vector<std::vector<GroupId>> groups_;  // by stage and group of the source
  std::vector<std::vector<TensorId>> ids_;  // by (stage, micro-batch + 1) and tensor of the source
  std::vector<std::int64_t> copies_;        // by tensor of the source
  std::vector<OpId> last_copy_;             // by op of the source
  Plan plan_;
};

}  // namespace

bool pipeline_applies(const Plan& /*plan*/, const Mesh& mesh) { return mesh.pp > 1; }

Plan pipeline_pass(const Plan& plan, const Mesh& mesh) { return PipelinePass(plan, mesh).run(); }

}  // namespace orrery
