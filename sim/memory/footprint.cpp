#include "sim/memory/footprint.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "sim/memory/buffers.h"
#include "sim/plan/liveness.h"
#include "sim/plan/sides.h"

namespace orrery {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kAllocation = 2 * kMiB;  // cudaMalloc's granularity
// A kernel node of an instantiated graph: 8 MiB for 3,000 of them, with 8 bytes of arguments as
// with 1 KiB. Measured: `orrery-gpu time memory`.
constexpr double kGraphNode = 8 * kMiB / 3000;
// NCCL 2.28 among 2 H200s, NVLink multicast off, likewise: code when the first communicator is
// made, with the first ring collective and the first send; buffers of each communicator at once,
// and for the kinds of calls that it makes.
constexpr double kNcclCode = 206 * kMiB;
constexpr double kNcclRingCode = 186 * kMiB;
constexpr double kNcclSendCode = 58 * kMiB;
constexpr double kCommunicator = 180 * kMiB;
constexpr double kRing = 288 * kMiB;
constexpr double kSendRecv = 64 * kMiB;
constexpr double kAllToAll = 320 * kMiB;
// Ranks of a host that our all-reduce serves, and its largest messages (AllReduceOptions).
constexpr std::size_t kMostRanks = 8;
constexpr std::int64_t kOneShotBytes = std::int64_t{3} << 20;
constexpr std::int64_t kTwoShotBytes = std::int64_t{64} << 20;

Bytes allocated(double bytes) { return Bytes(std::ceil(bytes / kAllocation) * kAllocation); }

Bytes weights_of(const Plan& plan, int rank) {
  const std::vector<std::int64_t> copies = num_copies(plan);
  const std::vector<bool> is_gathered = gathered_weights(plan);
  Bytes total;
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    const Tensor& tensor = plan.tensors()[i];
    const bool is_kept = tensor.role == TensorRole::kWeight && !is_gathered[i];
    if (!is_kept || !plan.contains(tensor.ranks, rank)) continue;
    total += allocated(bytes_of(tensor).value() * static_cast<double>(copies[i]));
  }
  return total;
}

// Each layer's states lie in one allocation, one behind the other.
Bytes states_of(const Plan& plan, int rank, std::int64_t sequences) {
  const std::vector<std::int64_t> copies = num_copies(plan);
  Bytes total;
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    const Tensor& tensor = plan.tensors()[i];
    if (tensor.role != TensorRole::kState || !plan.contains(tensor.ranks, rank)) continue;
    if (tensor.micro_batch > 0) continue;  // micro-batches share them
    const double of_sequence =
        bytes_of(tensor).value() / static_cast<double>(std::max<std::int64_t>(
                                       tensor.axes.empty() ? 1 : tensor.axes.front().size, 1));
    total += allocated(of_sequence * static_cast<double>(sequences * copies[i]));
  }
  return total;
}

double nodes_of(const Plan& plan, int rank) {
  double nodes = 0;
  for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id) {
    if (plan.contains(plan.ops()[static_cast<std::size_t>(id)].ranks, rank)) {
      nodes += static_cast<double>(plan.multiplicity(id));
    }
  }
  return nodes;
}

Bytes nccl_memory(const std::map<GroupId, std::set<CollectiveKind>>& groups) {
  if (groups.empty()) return Bytes(0);
  double bytes = kNcclCode;
  bool has_ring = false;
  bool has_send = false;
  for (const auto& [group, kinds] : groups) {
    const bool sends = kinds.contains(CollectiveKind::kSendRecv);
    const bool has_all_to_all = kinds.contains(CollectiveKind::kAllToAll);
    const bool rings = kinds.size() > static_cast<std::size_t>(sends) + (has_all_to_all ? 1 : 0);
    bytes += kCommunicator + (rings ? kRing : 0) + (sends ? kSendRecv : 0) +
             (has_all_to_all ? kAllToAll : 0);
    has_ring |= rings;
    has_send |= sends || has_all_to_all;
  }
  return Bytes(bytes + (has_ring ? kNcclRingCode : 0) + (has_send ? kNcclSendCode : 0));
}

// A communicator for each group of ranks, and a receive area for each group and stream in which
// ours sums.
Bytes communication_of(const FootprintRequest& request, int rank) {
  const Plan& plan = *request.steps.front();
  std::map<GroupId, std::set<CollectiveKind>> groups;
  std::map<std::pair<GroupId, int>, Bytes> areas;
  for (const Op& op : plan.ops()) {
    const auto* comm = std::get_if<CommOp>(&op.body);
    if (comm == nullptr || !plan.contains(op.ranks, rank)) continue;
    if (moves_by_copies(plan, op)) continue;  // copied into the memory of who gets it
    std::set<CollectiveKind>& kinds = groups[op.ranks];
    const std::size_t size = plan.ranks(op.ranks).size();
    if (comm->kind != CollectiveKind::kAllReduce || size > kMostRanks) {
      kinds.insert(comm->kind);
      continue;
    }
    const Tensor& tensor = plan.tensors()[static_cast<std::size_t>(op.reads.front())];
    const double rows = tensor.axes.empty() ? 1 : static_cast<double>(tensor.axes.front().size);
    const double largest =
        bytes_of(tensor).value() / rows * static_cast<double>(request.max_tokens);
    areas.try_emplace(
        {op.ranks, op.stream},
        all_reduce_area(static_cast<std::int64_t>(std::ceil(largest)), static_cast<int>(size)));
  }
  Bytes total = nccl_memory(groups);
  for (const auto& [place, bytes] : areas) total += allocated(bytes.value());
  return total;
}

// Token ids, positions, slots, block tables of decodes and chunks; cosines and sines.
Bytes tables_of(const FootprintRequest& request) {
  const auto tokens = static_cast<double>(request.max_tokens);
  const auto sequences = static_cast<double>(request.max_sequences);
  const double blocks = std::ceil(static_cast<double>(request.max_model_len) /
                                  static_cast<double>(request.block_size));
  const double step = tokens * (4 + 4 + 8) + sequences * (4 + 4 + 2 * 4 * blocks);
  const double table =
      static_cast<double>(request.max_model_len) * static_cast<double>(request.head_dim) / 2 * 4;
  return allocated(step) + allocated(table) * 2;
}

}  // namespace

RankMemory footprint(const FootprintRequest& request, int rank) {
  if (request.steps.empty())
    throw std::invalid_argument("footprint: no step, expected one at least");
  RankMemory found{.context = request.fixed.context,
                   .weights = weights_of(*request.steps.front(), rank),
                   .kv_cache = allocated(request.kv_cache.value()),
                   .states = states_of(*request.steps.front(), rank, request.max_sequences),
                   .workspace = request.fixed.workspace,
                   .communication = communication_of(request, rank),
                   .other = tables_of(request) + request.fixed.libraries};
  found.workspace += allocated(request.scratch.value());
  for (const Plan* plan : request.steps) {
    const auto arena = static_cast<double>(plan_buffers(*plan, rank).arena_bytes);
    found.activations = std::max(found.activations, allocated(arena));
  }
  double nodes = 0;
  for (const Plan* plan : request.captured) nodes += nodes_of(*plan, rank);
  found.graphs = allocated(nodes * kGraphNode);
  return found;
}

Bytes all_reduce_area(std::int64_t largest, int num_ranks) {
  constexpr std::int64_t kVector = 16;
  const auto vectors = [](std::int64_t bytes) { return (bytes + kVector - 1) / kVector; };
  const std::int64_t one_shot = num_ranks * vectors(std::min(largest, kOneShotBytes));
  const std::int64_t share =
      (vectors(std::min(largest, kTwoShotBytes)) + num_ranks - 1) / num_ranks;
  const std::int64_t half = std::max(one_shot, std::int64_t{2} * num_ranks * share) * kVector;
  return Bytes(static_cast<double>(2 * half));
}

}  // namespace orrery
