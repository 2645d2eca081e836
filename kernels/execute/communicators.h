#pragma once

// What collectives among ranks of this process need: NCCL's communicators and the receive areas of
// our own all-reduce, one set for each distinct group of ranks; and what layers of experts that are
// one kernel over ranks work in. Ranks of two sides (sim/plan/sides.h) write into each other's
// memory, and so do those of an exchange by copies; where two sides cannot, NCCL has a communicator
// for each stream of transfers between them, since those of one wait for each other.

#include <compare>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/binding/bind_context.h"
#include "kernels/comm/all_reduce/all_reduce.h"
#include "kernels/cuda/devices.h"
#include "kernels/cuda/nccl.h"
#include "kernels/execute/copy_workspace.h"
#include "kernels/execute/executor.h"
#include "kernels/execute/rank_error.h"
#include "kernels/execute/side_workspace.h"
#include "kernels/experts/fused_moe/fused_moe.h"
#include "sim/plan/plan.h"

namespace orrery {

struct CommGroup {
  std::vector<int> ranks;                         // of the plan, ascending
  std::vector<cuda::Communicator> communicators;  // of the ranks that this process has
  std::unique_ptr<cuda::DeviceTeam> team;         // with all_reduce or copies alone
  // By stream of the plan, since calls that share one must be ordered. Empty: NCCL reduces.
  std::map<int, AllReduceWorkspace> all_reduce;
  std::unique_ptr<CopyWorkspace> copies;  // of an all_to_all that is copied
  // Place of `rank`, which is one of them.
  [[nodiscard]] int place(int rank) const;
  // Of `rank`, which this process has.
  [[nodiscard]] const cuda::Communicator& communicator(int rank) const;
};

// Groups stay where they are once opened: launches refer to them.
class Communicators {
 public:
  // Receive areas are made for messages of the setup's max_tokens. The setup must outlive it.
  explicit Communicators(const ExecutorSetup& setup);
  // What the communication ops of `plan` need and is not there yet. Call while nothing runs. Throws
  // cuda::NcclError, cuda::Error, std::runtime_error without NCCL, std::invalid_argument for GPUs
  // without peer access, for layers that are one kernel and processes of several hosts, and for an
  // exchange by copies where NCCL is to move everything.
  void open(const Plan& plan);
  [[nodiscard]] bool has_opened(const Plan& plan) const;
  // Whether ranks of a communication op write into each other's memory.
  [[nodiscard]] bool is_between_peers(const Plan& plan, const Op& op) const;
  // Of an op that was opened.
  [[nodiscard]] CommGroup& group(const Plan& plan, const Op& op);
  // Of an op that was opened on `rank`; null for other kernels.
  [[nodiscard]] RankedMoe ranked_moe(const Plan& plan, const Op& op, int rank) const;
  // Of the plan opened last that has two sides, which holds those opened before, too; null where
  // NCCL moves what goes between them.
  [[nodiscard]] const SideWorkspace* sides() const {
    return sides_.empty() ? nullptr : sides_.back().get();
  }
  // Ends what waits, in NCCL's communicators and in our kernels (any thread); nothing can be
  // enqueued after that.
  void abort();
  // What went wrong with calls that were enqueued, or none (any thread): NCCL's error, or that one
  // of our kernels gave up. Nothing while communicators are being opened.
  [[nodiscard]] std::optional<RankError> find_error();
  // How many calls of our kernels `rank` has begun; while they run, too (one thread at a time).
  [[nodiscard]] std::int64_t calls_begun(int rank);

 private:
  struct Key {
    std::vector<int> ranks;
    int stream = -1;  // -1: of all streams
    auto operator<=>(const Key&) const = default;
  };
  static Key key_of(const Plan& plan, const Op& op);
  // Layers of experts that are one kernel each, over these ranks: all of a shape share one.
  struct MoeKey {
    std::vector<int> ranks;
    FusedMoeShape shape;
    auto operator<=>(const MoeKey&) const = default;
  };
  [[nodiscard]] MoeKey moe_key_of(const Plan& plan, const Op& op) const;
  void open_moe(const Plan& plan, const Op& op);
  [[nodiscard]] std::unique_ptr<FusedMoePlan> open_moe_of_processes(const MoeKey& key) const;
  void open_copies(const Op& op, CommGroup& group) const;
  CommGroup& open_group(const Key& key, bool has_communicators);
  [[nodiscard]] bool holds_sides(const Plan& plan) const;
  void open_sides(const Plan& plan);
  // Whether our kernels may serve `op` among so many ranks.
  [[nodiscard]] bool wants_own_kernels(const CommOp& op, std::size_t num_ranks) const;
  [[nodiscard]] std::vector<int> devices_of(std::span<const int> ranks) const;

  // Our kernels' largest message is that of `op` in a step of max_tokens.
  [[nodiscard]] AllReduceOptions options_for(const Plan& plan, const Op& op) const;

  const ExecutorSetup& setup_;
  bool only_nccl_;
  bool are_peers_;    // all GPUs, without only_nccl_
  std::mutex mutex_;  // of what other threads than the executor's ask
  std::map<Key, CommGroup> groups_;
  std::map<MoeKey, std::unique_ptr<FusedMoePlan>> moe_;       // null: of other processes' ranks
  std::vector<std::unique_ptr<cuda::DeviceTeam>> moe_teams_;  // whose ranks reach each other
  std::unique_ptr<cuda::DeviceTeam> team_;                    // of all ranks, with sides_ alone
  std::vector<std::unique_ptr<SideWorkspace>> sides_;  // the last is the largest; steps keep theirs
};

}  // namespace orrery
