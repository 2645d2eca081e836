#include "kernels/execute/communicators.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/comm/processes/process_memory.h"
#include "kernels/experts/fused_moe/call.h"
#include "sim/plan/sides.h"

namespace orrery {
namespace {

// Of a kernel that waits for another rank. A step that takes too long is noticed before.
constexpr Seconds kTimeout{4.5};

bool is_ranked_moe(const Op& op) {
  const auto* kernel = std::get_if<KernelOp>(&op.body);
  return kernel != nullptr && kernel->kernel == "fused_moe";
}

}  // namespace

int CommGroup::place(int rank) const {
  return static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
}

const cuda::Communicator& CommGroup::communicator(int rank) const {
  return *std::ranges::find(communicators, place(rank), &cuda::Communicator::rank);
}

Communicators::Communicators(const ExecutorSetup& setup)
    : setup_(setup),
      only_nccl_(setup.only_nccl || setup.processes.size > 1),
      are_peers_(!only_nccl_ && cuda::are_peers(setup.devices)) {}

bool Communicators::is_between_peers(const Plan& plan, const Op& op) const {
  return are_peers_ && moves_by_copies(plan, op);
}

bool Communicators::holds_sides(const Plan& plan) const {
  if (!are_peers_) return true;
  const SideLayout layout = side_layout(plan);
  return layout.bytes == 0 || (!sides_.empty() && sides_.back()->holds(layout));
}

void Communicators::open_sides(const Plan& plan) {
  if (holds_sides(plan)) return;
  if (!team_) team_ = std::make_unique<cuda::DeviceTeam>(setup_.devices);
  const SideLayout layout = side_layout(plan);
  std::int64_t bytes = layout.bytes;
  std::int64_t flags = layout.num_flags(team_->size());
  if (!sides_.empty()) {
    bytes = std::max(bytes, sides_.back()->area_bytes());
    flags = std::max(flags, sides_.back()->num_flags());
  }
  sides_.push_back(std::make_unique<SideWorkspace>(*team_, bytes, flags));
}

bool Communicators::wants_own_kernels(const CommOp& op, std::size_t num_ranks) const {
  const bool sums =
      op.dtype == DType::kBf16 || op.dtype == DType::kFp16 || op.dtype == DType::kFp32;
  return !only_nccl_ && op.kind == CollectiveKind::kAllReduce && sums && num_ranks <= kMaxRanks;
}

std::vector<int> Communicators::devices_of(std::span<const int> ranks) const {
  std::vector<int> devices;
  for (const int rank : ranks) devices.push_back(setup_.devices.at(static_cast<std::size_t>(rank)));
  return devices;
}

bool Communicators::has_opened(const Plan& plan) const {
  return holds_sides(plan) && std::ranges::all_of(plan.ops(), [&](const Op& op) {
           if (is_ranked_moe(op) && !moe_.contains(moe_key_of(plan, op))) return false;
           const auto* comm = std::get_if<CommOp>(&op.body);
           if (comm == nullptr) return true;
           const auto found = groups_.find(key_of(plan, op));
           return found != groups_.end() && (!comm->is_copied || found->second.copies != nullptr) &&
                  (!wants_own_kernels(*comm, plan.ranks(op.ranks).size()) ||
                   found->second.all_reduce.contains(op.stream));
         });
}

Communicators::Key Communicators::key_of(const Plan& plan, const Op& op) {
  const auto ranks = plan.ranks(op.ranks);
  return {.ranks = {ranks.begin(), ranks.end()},
          .stream = moves_by_copies(plan, op) ? op.stream : -1};
}

CommGroup& Communicators::open_group(const Key& key, bool has_communicators) {
  const auto [entry, is_new] = groups_.try_emplace(key);
  CommGroup& group = entry->second;
  if (!is_new) return group;
  group.ranks = key.ranks;
  if (!has_communicators) return group;
  const std::vector<int>& ranks = group.ranks;
  const ProcessGroup& processes = setup_.processes;
  if (processes.size == 1) {
    group.communicators = cuda::Communicator::for_devices(devices_of(ranks));
    return group;
  }
  // All processes see all groups, in the same order; the group's first rank names it.
  ncclUniqueId id{};
  if (processes.rank == ranks.front()) id = cuda::nccl_unique_id();
  processes.broadcast(std::as_writable_bytes(std::span(&id, 1)), ranks.front());
  const int place = group.place(processes.rank);
  const int size = static_cast<int>(ranks.size());
  if (place < size) {
    const cuda::DeviceGuard guard(setup_.devices[static_cast<std::size_t>(processes.rank)]);
    group.communicators.push_back(cuda::Communicator::for_rank(id, place, size));
  }
  return group;
}

AllReduceOptions Communicators::options_for(const Plan& plan, const Op& op) const {
  const Tensor& tensor = plan.tensors()[static_cast<std::size_t>(op.reads.front())];
  const double rows = tensor.axes.empty() ? 1 : static_cast<double>(tensor.axes.front().size);
  const auto largest = static_cast<std::int64_t>(
      std::ceil(bytes_of(tensor).value() / rows * static_cast<double>(setup_.max_tokens)));
  AllReduceOptions options{.timeout = kTimeout};
  options.one_shot_bytes = std::min(options.one_shot_bytes, largest);
  options.two_shot_bytes = std::min(options.two_shot_bytes, largest);
  return options;
}

void Communicators::open(const Plan& plan) {
  const std::scoped_lock lock(mutex_);
  open_sides(plan);
  for (const Op& op : plan.ops()) {
    if (is_ranked_moe(op)) open_moe(plan, op);
    const auto* comm = std::get_if<CommOp>(&op.body);
    if (comm == nullptr) continue;
    const auto ranks = plan.ranks(op.ranks);
    CommGroup& group = open_group(key_of(plan, op), !is_between_peers(plan, op));
    if (comm->is_copied) open_copies(op, group);
    if (!wants_own_kernels(*comm, ranks.size()) || group.all_reduce.contains(op.stream)) continue;
    if (!group.team) group.team = std::make_unique<cuda::DeviceTeam>(devices_of(ranks));
    group.all_reduce.try_emplace(op.stream, *group.team, options_for(plan, op));
  }
}

void Communicators::open_copies(const Op& op, CommGroup& group) const {
  if (group.copies != nullptr) return;
  if (!are_peers_) {
    std::string why = "GPUs without access to each other's memory";
    if (setup_.processes.size > 1) why = "ranks of several processes";
    if (setup_.only_nccl) why = "ranks whose collectives are all NCCL's";
    throw std::invalid_argument("op \"" + op.name + "\": rows are copied between " + why +
                                ", expected expert_comm eager, or one process whose GPUs have peer "
                                "access (NVLink)");
  }
  const std::vector<int> devices = devices_of(group.ranks);
  if (!group.team) group.team = std::make_unique<cuda::DeviceTeam>(devices);
  group.copies = std::make_unique<CopyWorkspace>(devices);
}

// Of one rank too: steps of all sizes share what it works in.
Communicators::MoeKey Communicators::moe_key_of(const Plan& plan, const Op& op) const {
  const auto all = plan.ranks(op.ranks);
  FusedMoeShape shape = fused_moe_call(std::get<KernelOp>(op.body), setup_.numbers.routing);
  shape.tokens = setup_.max_tokens;
  return {.ranks = {all.begin(), all.end()}, .shape = shape};
}

void Communicators::open_moe(const Plan& plan, const Op& op) {
  const MoeKey key = moe_key_of(plan, op);
  if (moe_.contains(key)) return;
  const auto num_ranks = std::ssize(key.ranks);
  if (key.shape.ranks != num_ranks) {
    throw std::invalid_argument("op \"" + op.name + "\": experts on " +
                                std::to_string(key.shape.ranks) + " ranks of " +
                                std::to_string(num_ranks) + ", expected on each a part of its own");
  }
  const ProcessGroup& processes = setup_.processes;
  if (processes.size > 1) {
    try {
      moe_.emplace(key, open_moe_of_processes(key));
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(
          "op \"" + op.name +
          "\": one kernel over ranks that write into each other's memory: " + error.what());
    }
    return;
  }
  const std::vector<int> devices = devices_of(key.ranks);
  if (num_ranks > 1) moe_teams_.push_back(std::make_unique<cuda::DeviceTeam>(devices));
  moe_.emplace(key, std::make_unique<FusedMoePlan>(key.shape, devices));
}

// All processes see all layers, in the same order. Null in those of other ranks, which take part in
// the exchange alone.
std::unique_ptr<FusedMoePlan> Communicators::open_moe_of_processes(const MoeKey& key) const {
  const ProcessGroup& processes = setup_.processes;
  if (std::ranges::find(key.ranks, processes.rank) == key.ranks.end()) {
    if (key.ranks.size() > 1) ProcessMemory(processes, key.ranks, 0);
    return nullptr;
  }
  const cuda::DeviceGuard guard(setup_.devices[static_cast<std::size_t>(processes.rank)]);
  return std::make_unique<FusedMoePlan>(key.shape, processes, key.ranks);
}

RankedMoe Communicators::ranked_moe(const Plan& plan, const Op& op, int rank) const {
  if (!is_ranked_moe(op)) return {};
  const MoeKey key = moe_key_of(plan, op);
  return {.plan = moe_.at(key).get(),
          .place = static_cast<int>(std::ranges::find(key.ranks, rank) - key.ranks.begin())};
}

CommGroup& Communicators::group(const Plan& plan, const Op& op) {
  return groups_.at(key_of(plan, op));
}

void Communicators::abort() {
  const std::scoped_lock lock(mutex_);
  // Ours first: NCCL frees memory, which may wait for the device.
  for (auto& [key, group] : groups_) {
    for (auto& [stream, workspace] : group.all_reduce) workspace.abort();
  }
  for (const auto& sides : sides_) sides->abort();
  for (auto& [key, group] : groups_) {
    for (cuda::Communicator& communicator : group.communicators) communicator.abort();
  }
}

std::optional<RankError> Communicators::find_error() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return std::nullopt;
  for (const auto& [key, group] : groups_) {
    for (const cuda::Communicator& communicator : group.communicators) {
      const int rank = group.ranks[static_cast<std::size_t>(communicator.rank())];
      for (const auto& [stream, workspace] : group.all_reduce) {
        if (workspace.timed_out(communicator.rank()) == 0) continue;
        return RankError(rank, "", "an all_reduce gave up: another rank did not come");
      }
      if (communicator.get() == nullptr) continue;
      const ncclResult_t code = communicator.async_error();
      if (code == ncclSuccess || code == ncclInProgress) continue;
      return RankError(rank, "", std::string("NCCL: ") + cuda::nccl().get_error_string(code));
    }
  }
  return std::nullopt;
}

std::int64_t Communicators::calls_begun(int rank) {
  const std::scoped_lock lock(mutex_);
  std::int64_t calls = 0;
  for (const auto& [key, group] : groups_) {
    const int place = group.place(rank);
    if (place == static_cast<int>(group.ranks.size())) continue;
    for (const auto& [stream, workspace] : group.all_reduce) calls += workspace.calls_begun(place);
  }
  return calls;
}

}  // namespace orrery
